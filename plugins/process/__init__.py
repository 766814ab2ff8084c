"""Sandboxes as local processes, inside bubblewrap where it works.

Begin with `backend`. `zygote` starts the fork server; `programs` holds what runs in processes of its own.
"""

from collections.abc import Iterable
from typing import Any

from agentsvc.plugin import RuntimeBackend, Spec, hookimpl

from .backend import ProcessBackend
from .specs import DEFAULT_SPEC


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer the process backend."""
    return [ProcessBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Offer the published agent server, run by the Python that runs this server."""
    return [DEFAULT_SPEC]
