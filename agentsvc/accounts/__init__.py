"""Users, API keys, logins, quotas and the audit log."""
