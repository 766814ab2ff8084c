"""Sandboxes as containers of Docker or Podman: on this machine, by TCP with TLS, or by SSH.

Needs the extra `docker`; the client library is imported when a backend is opened.
"""

from collections.abc import Iterable
from typing import Any

from agentsvc.plugin import RuntimeBackend, Spec, hookimpl

from .backend import DockerBackend
from .specs import SPECS


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer the docker backend."""
    return [DockerBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Offer the published agent server's image and the one `agentsvc images build` makes."""
    return SPECS
