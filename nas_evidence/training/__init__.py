"""Training with online Laplace updates."""
