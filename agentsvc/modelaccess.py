"""Where this server asks language models: at public addresses, and at hosts the operator lists.

That is where sandboxes reach them as well.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from ipaddress import ip_address

import aiohttp
from yarl import URL

from agentsvc.egress.addresses import BadHost, parse_host
from agentsvc.egress.policy import Mode, Policy, parse_policy, show
from agentsvc.reach import CheckedResolver, Lookup


class AddressRefused(OSError):
    """An address at which models are not asked."""


def policy_of(url: URL, known: Iterable[str]) -> Policy:
    """Return the rule for the host and port of a URL; raises BadHost, or AddressRefused.

    Models at `known` hosts, as `allow_hosts` names them, may be anywhere.
    """
    host, port = str(parse_host(url.raw_host or "")), url.port or 0
    place = [(host, port)]
    is_near = not parse_policy(Mode.ALLOWLIST, known).refuse_host(parse_host(host), port)
    policy = parse_policy(Mode.NONE, needed=place if is_near else (), models=place)
    # A client does not look up what is an address already.
    address = parse_host(host)
    if not isinstance(address, str):
        check_addresses(policy, host, port, [str(address)])
    return policy


def check_addresses(policy: Policy, host: str, port: int, addresses: Sequence[str]) -> None:
    """Raise AddressRefused unless a model may be asked at all of the addresses of its host."""
    name = parse_host(host)
    found = [ip_address(text.partition("%")[0]) for text in addresses]
    if any(policy.refuse_address(name, port, address) for address in found):
        raise AddressRefused(
            "the server asks models at public addresses only, but for those in"
            f" `sandboxes.model_hosts`. The operator may add `{show(name, port)}` there."
        )


async def may_ask(base_url: str, known: Iterable[str], lookup: Lookup) -> bool:
    """Say whether models are asked at a base URL, as far as its addresses can be found out."""
    try:
        url = URL(base_url)
        policy = policy_of(url, known)
        resolver = CheckedResolver(lookup, partial(check_addresses, policy))
        await resolver.resolve(url.raw_host or "", url.port or 0)
    except (AddressRefused, BadHost, ValueError):
        return False
    except OSError:
        # It may be found later, and the key is not to be elsewhere because of that.
        return True
    return True


def session_for(policy: Policy, lookup: Lookup) -> aiohttp.ClientSession:
    """Return what asks models as a policy says; it keeps nothing, and follows no proxy."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=CheckedResolver(lookup, partial(check_addresses, policy)), use_dns_cache=False
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )
