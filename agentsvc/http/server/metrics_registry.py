"""Measures requests, and encodes metrics in the text format of Prometheus. Pure.

Only a small part of the format is needed, so no library is used.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec

BOUNDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)
"""Upper bounds of the histogram buckets of request times, in seconds."""


class Refusal(StrEnum):
    """Why a request or connection was refused."""

    HOST = "host"
    KEY = "key"
    LOGIN = "login"
    KEY_RATE = "key_rate"
    ADDRESS_RATE = "address_rate"
    OTHER_RATE = "other_rate"
    CONNECTIONS = "connections"
    ADDRESS_CONNECTIONS = "address_connections"
    KEYLESS_CONNECTIONS = "keyless_connections"
    USER_CONNECTIONS = "user_connections"
    SANDBOX_CONNECTIONS = "sandbox_connections"
    SANDBOX_RATE = "sandbox_rate"
    SANDBOX_BYTES = "sandbox_bytes"
    SANDBOX_QUOTA = "sandbox_quota"


type Labels = Mapping[str, str]
type Sample = tuple[str, Labels, float]
"""Suffix of the family's name, such as `_count`; labels; value."""


class MetricFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with all its samples; `kind` is gauge, counter or histogram."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


def _family(
    kind: str, name: str, text: str, samples: Iterable[tuple[Labels, float]]
) -> MetricFamily:
    found = tuple(("", labels, value) for labels, value in samples)
    return MetricFamily(name=f"agentsvc_{name}", kind=kind, help=text, samples=found)


gauge: Final = partial(_family, "gauge")
"""Returns a gauge with samples."""
counter: Final = partial(_family, "counter")
"""Returns a counter with samples."""


def to_text(families: Iterable[MetricFamily]) -> str:
    """Encode metrics in the text format, version 0.0.4."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


class RequestMetrics:
    """Metrics of requests since the start; labels have few values: methods, routes, statuses."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._times: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * (len(BOUNDS) + 2))
        self._refused: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        self.running = 0

    def note(self, *, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a finished request; `seconds` is None for streams and proxied requests."""
        self._counts[method, route, status] += 1
        if seconds is not None:
            times = self._times[route]
            times[bisect_left(BOUNDS, seconds)] += 1
            times[-1] += seconds

    def refuse(self, reason: Refusal) -> None:
        """Count a refused request or connection."""
        self._refused[reason] += 1

    def families(self) -> Iterator[MetricFamily]:
        """Yield the metrics of requests."""
        yield counter(
            "requests_total",
            "Finished requests; status 0 means that the client disconnected.",
            (
                ({"method": method, "route": route, "status": str(status)}, count)
                for (method, route, status), count in sorted(self._counts.items())
            ),
        )
        yield counter(
            "refused_total",
            "Refused requests and connections by reason: host name, key, login, limits.",
            (({"reason": reason}, count) for reason, count in self._refused.items()),
        )
        yield gauge("requests_running", "Requests and streams in progress.", [({}, self.running)])
        yield MetricFamily(
            name="agentsvc_request_seconds",
            kind="histogram",
            help="Time from the head of a request to the end of its response, without streams.",
            samples=tuple(
                sample
                for route, times in sorted(self._times.items())
                for sample in _histogram({"route": route}, times)
            ),
        )


def _histogram(labels: Labels, times: list[float]) -> Iterator[Sample]:
    count = 0.0
    for bound, part in zip((*BOUNDS, float("inf")), times[:-1], strict=True):
        count += part
        yield "_bucket", {**labels, "le": "+Inf" if bound == float("inf") else f"{bound:g}"}, count
    yield "_sum", labels, times[-1]
    yield "_count", labels, count


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for suffix, labels, value in family.samples:
        inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        shown = f"{{{inside}}}" if inside else ""
        yield f"{family.name}{suffix}{shown} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
