"""How familiar a photo looks, and whether it is judged to be "not one of ours"."""
