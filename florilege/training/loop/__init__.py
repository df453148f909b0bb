"""The loop of a run: steps, validation, checkpoints, and the processes that take part."""
