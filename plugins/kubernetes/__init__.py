"""Runs sandboxes as pods of a Kubernetes cluster, each with a claim for its files.

Requires the extra `kubernetes`; the client library is imported when a backend is opened.
"""

from collections.abc import Iterable
from typing import Any

from agentsvc.plugin import RuntimeBackend, Spec, hookimpl

from .backend import KubernetesBackend
from .specs import SPECS


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Register the kubernetes backend."""
    return [KubernetesBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Register a spec for the published image of the agent server."""
    return SPECS
