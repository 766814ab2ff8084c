"""Configuration of prepared environments."""

from typing import Annotated

from msgspec import Meta, Struct


class EnvironmentsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `environments` section: set-ups that run once and are copied into sandboxes."""

    enabled: bool = True
    """Prepare environments, and serve their API"""
    max_per_user: Annotated[int, Meta(ge=1, le=100)] = 20
    """Maximum number of environments per user"""
    max_bytes: Annotated[int, Meta(ge=1)] = 20 * 1024**3
    """Maximum disk space for the files of one environment"""
    max_total_bytes: Annotated[int, Meta(ge=1)] = 100 * 1024**3
    """Maximum disk space for the files of all environments together"""
    prepare_seconds: Annotated[float, Meta(ge=1, le=86400)] = 1800.0
    """Time limit of the set-up script"""
    max_at_once: Annotated[int, Meta(ge=1, le=100)] = 2
    """Maximum number of environments prepared at a time, at most one per user"""
    images: tuple[str, ...] = ("docker.io/*", "ghcr.io/*", "mcr.microsoft.com/*", "quay.io/*")
    """Images that environments may use, as patterns of full names"""
    build_images: bool = False
    """Build the Dockerfiles of repositories, and install features; the engine runs their commands as
    root, in its own network and without limits"""
    features_dir: Annotated[str, Meta(extra={"path": True})] = ""
    """Directory of the features that may be installed; empty: no features"""
