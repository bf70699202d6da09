"""Where trials run: the executor protocol, on Ray, in this process, nowhere."""
