"""`python -m nas_evidence`: the command line where its script is not on the path, as in a job."""

from nas_evidence.cli.main import main

if __name__ == "__main__":
    main()
