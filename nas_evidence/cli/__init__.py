"""The command line; only these files print."""
