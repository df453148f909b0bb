"""Several servers behind one port: the supervisor, the connections it hands out, its workers."""
