"""Sources of photos and labels, read lazily."""
