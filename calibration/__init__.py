"""From scores to sets with a promise: the library at the root, a bundle's calibration in rooms."""
