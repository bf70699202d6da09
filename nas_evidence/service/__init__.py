"""The search service: who proposes, who runs, and the loop that joins them."""
