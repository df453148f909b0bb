"""Running the network for many requests at once: batches on a GPU, a bound on decoded pixels."""
