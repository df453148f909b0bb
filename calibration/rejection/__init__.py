""" "Not one of ours": how familiar a photo looks, and what is said about it."""
