"""What an operator can set for the remote runtime API."""

from typing import Annotated

from msgspec import Meta, Struct


class RuntimeApiConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `runtime_api` section: sandboxes for other control planes."""

    enabled: Annotated[
        bool,
        Meta(
            description="Serve the remote runtime API below /runtime, so that other control planes"
            " can keep their sandboxes here"
        ),
    ] = False
    spec: Annotated[
        str,
        Meta(
            description="Spec of what they start with an image that no spec has;"
            " empty refuses such images"
        ),
    ] = ""
    at_root: Annotated[
        bool,
        Meta(
            description="Give them URLs without a path, as the SDK's remote workspace needs them;"
            " work ports then have none that they could derive"
        ),
    ] = False
