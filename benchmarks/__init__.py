"""What is measured, as ratios inside one run; nothing that is served imports it."""
