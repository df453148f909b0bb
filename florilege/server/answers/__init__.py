"""From photos to an answer, without HTTP: the server and ``florilege predict`` share it."""
