"""Language models: catalogue, reachability checks, and the proxy that holds the real key."""
