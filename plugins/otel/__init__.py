"""OpenTelemetry traces of requests and of starts, if the environment names a collector.

The packages are the extra `otel`. No global state of OpenTelemetry is set, so that other plugins may
have their own traces.
"""

import os
from collections.abc import Iterable

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Return the extension, if the environment names a collector."""
    from .tracing import Tracing, is_wanted  # noqa: PLC0415  # slow to import

    return [Tracing] if is_wanted(os.environ) else []
