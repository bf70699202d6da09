"""Files written whole, seals, retries, and durations in words."""
