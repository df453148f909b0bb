"""The output of the commands, and the ``bundle`` commands."""
