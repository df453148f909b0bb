"""Copies of photos in other bytes: fingerprints that travel with a network."""
