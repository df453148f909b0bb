"""Answers without HTTP: ``florilege predict`` for many files, and ``florilege.load`` in Python."""
