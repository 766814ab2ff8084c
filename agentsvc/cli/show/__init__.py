"""How conversations look in a terminal: what is said of each event, in plain text or in colour."""
