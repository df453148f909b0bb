"""Rows of the papers: recipes on a GPU or CPU, and sweeps beside published figures."""
