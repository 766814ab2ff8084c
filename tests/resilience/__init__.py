"""Programs that try to break the server as it really runs; `poe resilience` runs them at full size."""
