"""What sets hold: losses, heads, lists, places and several photos."""
