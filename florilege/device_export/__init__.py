"""Folders for devices without a server: a web page that works offline, and files for apps."""
