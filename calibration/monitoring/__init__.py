"""After deployment, mostly without labels: drift, the score log, new thresholds, audits."""
