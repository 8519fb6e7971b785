"""Training: optimisers, schedules, workers, checkpoints, and the loop that puts them together."""
