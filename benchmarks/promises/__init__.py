"""Everything that a certificate can say, simulated through the functions that say it."""
