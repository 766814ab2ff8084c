"""Language model hosts that the server may call: public ones, and those the operator lists.

Sandboxes may call the same hosts.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from yarl import URL

from agentsvc.agentserver import AddressNotAllowed, Lookup, SafeConnector
from agentsvc.base import Secret
from agentsvc.plugin.egress import BadHost, parse_host

_REFUSAL: Final = (
    "the server calls models at public addresses only, except for those in"
    " `sandboxes.model_hosts`. The operator may add `{place}` there."
)


def model_connector(
    known: Iterable[str], *, own: Iterable[str] = (), lookup: Lookup | None = None
) -> SafeConnector:
    """Return a connector for models; `known` hosts may have any address."""
    return SafeConnector(listed=known, own=own, refusal=_REFUSAL, lookup=lookup)


def check_host(reach: SafeConnector, url: URL) -> None:
    """Raise BadHost for an invalid host, AddressNotAllowed for an address that may not be called."""
    parse_host(url.raw_host or "")
    reach.check_literal(url.raw_host or "", url.port or 0)


async def may_ask(base_url: str, reach: SafeConnector) -> bool:
    """Return whether the server may call models at a base URL; True if it cannot be resolved now."""
    try:
        url = URL(base_url)
        check_host(reach, url)
        await reach.resolve(url.raw_host or "", url.port or 0)
    except (AddressNotAllowed, BadHost, ValueError):
        return False
    except OSError:
        # The name may resolve later, and until then the key must not be given to the sandbox.
        return True
    return True


def model_headers(key: Secret | None, more: Mapping[str, Secret]) -> dict[str, str]:
    """Return the headers of a request to a model, with its key if there is one."""
    headers = {
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "agentsvc",
        **{name: value.reveal() for name, value in more.items()},
    }
    if key:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    return headers
