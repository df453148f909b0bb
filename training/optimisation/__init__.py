"""What changes weights: the optimiser and its rates, averages of weights, mixtures of pictures."""
