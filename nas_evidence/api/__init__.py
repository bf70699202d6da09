"""Python functions equal to the command line: search, resume, load; a study; estimators."""
