"""Training: the loop, its schedule, evaluation, checkpoints, several processes."""
