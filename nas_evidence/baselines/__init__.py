"""The winner beside simple models."""
