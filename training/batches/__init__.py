"""Photos on their way to the network: decoded, changed at random, put into batches."""
