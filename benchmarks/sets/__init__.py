"""What sets hold: promises, losses, rejection, lists and shift."""
