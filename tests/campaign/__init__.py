"""Programs that try to break the server as it really runs; `poe campaign` runs them at full size."""
