"""From labelled photos to weights, and from weights to a bundle."""
