"""What knows requests: reading them, refusing them, and the routes beside the main ones."""
