"""Familiarity scores of photos, and the rule that marks photos of none of the classes."""
