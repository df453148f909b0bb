"""Bundles of networks that were trained elsewhere."""
