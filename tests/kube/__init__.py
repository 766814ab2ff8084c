"""A small API server of Kubernetes, and a node whose pods are processes of this machine."""
