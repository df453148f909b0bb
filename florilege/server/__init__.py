"""Sets of candidate species over HTTP, and for files: no torch, no data sets."""
