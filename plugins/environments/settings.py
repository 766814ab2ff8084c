"""Configuration of prepared environments."""

from typing import Annotated

from msgspec import Meta, Struct


class EnvironmentsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `environments` section: set-ups that are done once and copied into sandboxes."""

    enabled: Annotated[bool, Meta(description="Prepare environments, and serve their API")] = True
    max_per_user: Annotated[
        int, Meta(ge=1, le=100, description="Most environments a user may have")
    ] = 20
    max_bytes: Annotated[
        int, Meta(ge=1, description="Most disk that the files of one environment may take")
    ] = 20 * 1024**3
    max_total_bytes: Annotated[
        int, Meta(ge=1, description="Most disk that those of all environments may take together")
    ] = 100 * 1024**3
    prepare_seconds: Annotated[
        float, Meta(ge=1, le=86400, description="Time limit of the set-up script")
    ] = 1800.0
    max_at_once: Annotated[
        int, Meta(ge=1, le=100, description="Most that are prepared at a time, one of each user")
    ] = 2
    images: Annotated[
        tuple[str, ...],
        Meta(description="Images that environments may name, by patterns of full names"),
    ] = ("docker.io/*", "ghcr.io/*", "mcr.microsoft.com/*", "quay.io/*")
    build_images: Annotated[
        bool,
        Meta(
            description="Build the Dockerfiles of repositories, and install features; the engine runs"
            " what is in there as root, in its own network and without limits"
        ),
    ] = False
    features_dir: Annotated[
        str, Meta(description="Directory with the features that may be installed; empty for none")
    ] = ""
