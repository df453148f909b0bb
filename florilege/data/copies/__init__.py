"""Copies of photos in other bytes: found in a data set, or by fingerprints that travel."""
