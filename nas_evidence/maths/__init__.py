"""Pure mathematics: structured matrices and rank statistics."""
