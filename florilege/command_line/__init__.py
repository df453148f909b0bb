"""What the command line says, and the verbs that combine several packages."""
