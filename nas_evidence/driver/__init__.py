"""The driver of a study: ask, run, write, tell; rungs, retries and the runtime forecast."""
