"""Language model hosts that the server may call: public ones, and those the operator lists.

That is where sandboxes reach them as well.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from yarl import URL

from agentsvc.agentserver import AddressNotAllowed, Lookup, SafeConnector
from agentsvc.base import Secret
from agentsvc.plugin.egress import BadHost, parse_host

_REFUSAL: Final = (
    "the server asks models at public addresses only, but for those in"
    " `sandboxes.model_hosts`. The operator may add `{place}` there."
)


def reach_of_models(
    known: Iterable[str], *, own: Iterable[str] = (), lookup: Lookup | None = None
) -> SafeConnector:
    """Return the rule for models; those at `known` hosts may be anywhere."""
    return SafeConnector(listed=known, own=own, refusal=_REFUSAL, lookup=lookup)


def check_host(reach: SafeConnector, url: URL) -> None:
    """Raise BadHost for a host that cannot be meant, AddressNotAllowed for an address that is not asked."""
    parse_host(url.raw_host or "")
    reach.check_literal(url.raw_host or "", url.port or 0)


async def may_ask(base_url: str, reach: SafeConnector) -> bool:
    """Say whether models are asked at a base URL, as far as its addresses can be found out."""
    try:
        url = URL(base_url)
        check_host(reach, url)
        await reach.resolve(url.raw_host or "", url.port or 0)
    except (AddressNotAllowed, BadHost, ValueError):
        return False
    except OSError:
        # It may be found later, and the key is not to be elsewhere because of that.
        return True
    return True


def model_headers(key: Secret | None, more: Mapping[str, Secret]) -> dict[str, str]:
    """Return the headers of a request to a model, with its key if it has one."""
    headers = {
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "agentsvc",
        **{name: value.reveal() for name, value in more.items()},
    }
    if key:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    return headers
