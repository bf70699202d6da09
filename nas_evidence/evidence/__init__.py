"""Log evidence of trained models: the Laplace formula, bounds, and linear models exactly."""
