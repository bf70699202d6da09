"""Choosing the next architecture: samplers, start-up points, warm starts."""
