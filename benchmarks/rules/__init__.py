"""Set rules: rare species against size, and coverage that holds for every threshold."""
