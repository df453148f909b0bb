"""Monitoring of a deployed bundle, mostly without labels: drift, score log, thresholds, audits."""
