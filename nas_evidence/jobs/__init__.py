"""Studies on a cluster: submit, follow, cancel."""
