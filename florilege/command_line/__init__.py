"""What the command line shares: messages of errors, and old names."""
