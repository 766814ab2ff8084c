"""Sandboxes on other machines: behind a remote runtime API, or at another agentsvc.

`runtime_api` and `server` are the two backends; `service_backend` is what they share, `calls` the HTTP of it.
"""

from collections.abc import Iterable
from typing import Any

from agentsvc.plugin import RuntimeBackend, Spec, hookimpl

from .runtime_api import RUNTIME_SPEC, RemoteBackend
from .server import SERVER_SPEC, ServerBackend


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer both backends."""
    return [RemoteBackend, ServerBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Offer a spec for each, for whoever configures none."""
    return [RUNTIME_SPEC, SERVER_SPEC]
