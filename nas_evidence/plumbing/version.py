"""The version of the package, for every room."""

__version__ = "0.1.0"
