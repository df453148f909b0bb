"""Heads trained alone: features of a frozen backbone, kept by photo, and what is made of them."""
