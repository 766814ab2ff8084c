"""Configuration of prepared environments."""

from typing import Annotated

from msgspec import Meta, Struct


class EnvironmentsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `environments` section: set-ups that are done once and copied into sandboxes."""

    enabled: bool = True
    """Prepare environments, and serve their API"""
    max_per_user: Annotated[int, Meta(ge=1, le=100)] = 20
    """Most environments a user may have"""
    max_bytes: Annotated[int, Meta(ge=1)] = 20 * 1024**3
    """Most disk that the files of one environment may take"""
    max_total_bytes: Annotated[int, Meta(ge=1)] = 100 * 1024**3
    """Most disk that those of all environments may take together"""
    prepare_seconds: Annotated[float, Meta(ge=1, le=86400)] = 1800.0
    """Time limit of the set-up script"""
    max_at_once: Annotated[int, Meta(ge=1, le=100)] = 2
    """Most that are prepared at a time, one of each user"""
    images: tuple[str, ...] = ("docker.io/*", "ghcr.io/*", "mcr.microsoft.com/*", "quay.io/*")
    """Images that environments may name, by patterns of full names"""
    build_images: bool = False
    """Build the Dockerfiles of repositories, and install features; the engine runs what is in there as
    root, in its own network and without limits"""
    features_dir: Annotated[str, Meta(extra={"path": True})] = ""
    """Directory with the features that may be installed; empty for none"""
