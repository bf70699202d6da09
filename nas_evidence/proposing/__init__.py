"""Which architecture is tried next: samplers, start-up points, warm starts."""
