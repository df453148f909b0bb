"""What happens to an answer once it is given: logs, the watch for drift, feedback."""
