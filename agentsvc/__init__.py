"""A self-hosted server that runs software-agent conversations inside sandboxes."""

__version__ = "0.1.0"
