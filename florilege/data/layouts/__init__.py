"""Supported layouts of labelled photos: folders, tables, archives."""
