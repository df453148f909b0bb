"""A running server: its rate, damaged requests, hours of everything at once."""
