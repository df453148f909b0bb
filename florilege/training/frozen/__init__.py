"""Train only the head: stored features of a frozen backbone, and the head solved for on them."""
