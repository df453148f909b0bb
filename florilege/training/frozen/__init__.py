"""Train only the head: stored features of a frozen backbone, discriminant and blended heads."""
