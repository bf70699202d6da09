"""The driver of a study: ask, run, write, tell; rungs, retries, and how long it will take."""
