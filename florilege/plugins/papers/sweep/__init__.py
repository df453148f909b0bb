"""``florilege sweep``: a recipe over a grid of settings and several seeds."""
