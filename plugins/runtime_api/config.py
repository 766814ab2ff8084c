"""Configuration of the remote runtime API."""

from msgspec import Struct


class RuntimeApiConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `runtime_api` section: sandboxes for other control planes."""

    enabled: bool = False
    """Serve the remote runtime API below /runtime, so that other control planes can run their
    sandboxes here"""
    spec: str = ""
    """Spec for images that no spec has; empty rejects such images"""
    at_root: bool = False
    """Return URLs without a path, as the SDK's remote workspace needs them; clients then cannot
    derive the URLs of work ports"""
