"""Configuration of the remote runtime API."""

from msgspec import Struct


class RuntimeApiConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `runtime_api` section: sandboxes for other control planes."""

    enabled: bool = False
    """Serve the remote runtime API below /runtime, so that other control planes can keep their
    sandboxes here"""
    spec: str = ""
    """Spec of what they start with an image that no spec has; empty refuses such images"""
    at_root: bool = False
    """Give them URLs without a path, as the SDK's remote workspace needs them; work ports then have
    none that they could derive"""
