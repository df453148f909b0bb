"""The optimiser and its learning rate, weight averaging, mixup."""
