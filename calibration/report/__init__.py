"""The page about the sets of a bundle, and what other pages are drawn with."""
