"""On labelled photos: scoring a split, choosing thresholds, measuring and comparing bundles."""
