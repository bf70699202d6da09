"""What is asked and what is found, as values; study files; declarations of scores."""
