"""What the commands print, and the commands of one bundle."""
