"""Time and memory, as ratios inside one run."""
