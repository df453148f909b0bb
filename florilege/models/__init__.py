"""Networks, bundles, and the image decoder that training and serving share."""
