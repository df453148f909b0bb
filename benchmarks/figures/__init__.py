"""The figures and pictures of README and docs, and the photos they need."""
