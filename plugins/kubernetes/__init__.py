"""Sandboxes as pods of a Kubernetes cluster, each with a claim that keeps its files.

Needs the extra `kubernetes`; the client library is imported when a backend is opened.
"""

from collections.abc import Iterable
from typing import Any

from agentsvc.plugin import RuntimeBackend, Spec, hookimpl

from .backend import KubernetesBackend
from .specs import SPECS


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer the kubernetes backend."""
    return [KubernetesBackend]


@hookimpl
def agentsvc_register_specs() -> Iterable[Spec]:
    """Offer the published agent server's image."""
    return SPECS
