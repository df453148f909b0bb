"""Commands that do everything: from photos, or drawn flowers, to a calibrated bundle and a page."""
