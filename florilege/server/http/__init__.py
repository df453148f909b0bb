"""Everything that knows HTTP: read requests, refuse requests, and the secondary routes."""
