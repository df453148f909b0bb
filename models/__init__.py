"""Networks, their bundles, and the decoder that training and serving share."""
