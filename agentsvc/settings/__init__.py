"""Per-user settings, model profiles and secrets."""
