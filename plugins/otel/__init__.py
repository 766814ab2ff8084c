"""Traces of requests and of starts in OpenTelemetry, where the environment names a collector.

The packages are the extra `otel`. Nothing is set for the whole process, so that other plugins may
have traces of their own.
"""

import os
from collections.abc import Iterable

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the traces, unless the environment switches them off."""
    from .tracing import Tracing, is_wanted  # noqa: PLC0415  # what it imports takes time

    return [Tracing] if is_wanted(os.environ) else []
