"""A real Kubernetes of the tests' own, from Debian's source package, and what is tested on it.

`poe live-kubernetes` builds it, once, and runs everything here; an ordinary run collects nothing of it.
"""
