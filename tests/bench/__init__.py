"""Programs that print figures; no test runs them, and they hold no time against a limit."""
