"""What the command line says, and the verbs that several packages share."""
