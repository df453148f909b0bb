"""``florilege predict``: answer many files in order; one failure never stops the others."""
