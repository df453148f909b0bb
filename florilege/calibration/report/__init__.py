"""The evaluation report of a bundle, and plots and HTML for other reports."""
