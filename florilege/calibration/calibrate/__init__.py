"""Calibrate, measure and compare bundles on labelled photos."""
