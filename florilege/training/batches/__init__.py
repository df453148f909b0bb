"""From photos to batches: decoding, augmentation, loading."""
