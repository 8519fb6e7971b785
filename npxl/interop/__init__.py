"""Other implementations' weights."""
