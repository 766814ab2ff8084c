"""Egress policies: allowed hosts, their patterns, and the decision.

Pure: the resolver looks names up; the policy only decides on the addresses.
"""

import ipaddress
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from .addresses import (
    Address,
    BadHost,
    is_metadata_service,
    is_outside,
    is_own,
    meant,
    parse_host,
    split_port,
)

DEFAULT_PORTS: Final = frozenset({80, 443})
"""The ports that a pattern without a port allows."""

type Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Mode(StrEnum):
    """Which hosts a sandbox may reach."""

    NONE = "none"
    """Only those that the server itself requires."""
    ALLOWLIST = "allowlist"
    """Also the hosts of the list."""
    OPEN = "open"
    """Also every public address."""
    ELSEWHERE = "elsewhere"
    """Also every address that does not belong to this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One entry of the list; without a port it matches ports 80 and 443."""

    name: str = ""
    """A host name, or with `is_wildcard` the domain whose subdomains match."""
    is_wildcard: bool = False
    network: Network | None = None
    port: int | None = None

    def has_port(self, port: int) -> bool:
        """Return whether the pattern allows a port."""
        return port == self.port if self.port else port in DEFAULT_PORTS

    def has_name(self, name: str) -> bool:
        """Return whether the pattern matches a host name."""
        if self.is_wildcard:
            return name.endswith(f".{self.name}")
        return bool(self.name) and name == self.name

    def has_address(self, address: Address) -> bool:
        """Return whether the pattern matches an address."""
        return self.network is not None and address in self.network


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The hosts that one sandbox may connect to."""

    mode: Mode = Mode.NONE
    allow: tuple[Pattern, ...] = ()
    needed: frozenset[tuple[str, int]] = frozenset()
    """Normalized hosts with their ports that are reachable in every mode and at any address but link-local
    ones and metadata services: the server's own for callbacks of agents, and models that the operator
    configured."""
    models: frozenset[tuple[str, int]] = frozenset()
    """The same for models that users configured, at public addresses only."""

    def is_needed(self, host: str | Address, port: int) -> bool:
        """Return whether a host and port are reachable in every mode."""
        return (str(host), port) in self.needed

    def is_model(self, host: str | Address, port: int) -> bool:
        """Return whether a host and port belong to a user's model."""
        return (str(host), port) in self.models

    def refuse_host(self, host: str | Address, port: int) -> str:
        """Return why a host is denied, whatever its address; empty if it is allowed."""
        if self.is_needed(host, port) or self.is_model(host, port):
            return ""
        if self.mode is Mode.NONE:
            return 'this sandbox has no network: its spec says `network = "none"`'
        if self._is_listed(host, port) or self.mode in (Mode.OPEN, Mode.ELSEWHERE):
            return ""
        return f"it is not in `allow_hosts` of this sandbox's spec; add `{show(host, port)}`"

    def refuse_address(self, host: str | Address, port: int, address: Address) -> str:
        """Return why an allowed host is denied at this address; empty if it is allowed."""
        if self._is_address_listed(address, port):
            return ""
        # The operator's hosts may have any address, except that of a cloud's metadata service.
        if self.is_needed(host, port) and not is_metadata_service(address):
            return ""
        if self._is_in_bounds(address):
            return ""
        if self.mode is Mode.ELSEWHERE:
            return f"{address} is an address of the machine that the sandbox runs on"
        if self.is_model(host, port):
            return (
                f"{address} is not a public address;"
                f" add `{host}:{port}` to `sandboxes.model_hosts` for models at it"
            )
        return (
            f"{address} is not a public address;"
            f" add `{show(address, port)}` to `allow_hosts` of this sandbox's spec"
        )

    def _is_in_bounds(self, address: Address) -> bool:
        if self.mode is not Mode.ELSEWHERE:
            return is_outside(address)
        inner = meant(address)
        # Connecting to the unspecified address connects to this machine.
        is_here = inner.is_unspecified or inner.is_loopback or is_own(inner)
        return not (is_here or inner.is_multicast or is_metadata_service(inner))

    def _is_listed(self, host: str | Address, port: int) -> bool:
        if isinstance(host, str):
            return any(item.has_name(host) and item.has_port(port) for item in self.allow)
        return self._is_address_listed(host, port)

    def _is_address_listed(self, address: Address, port: int) -> bool:
        # An IPv4 address embedded in an IPv6 address counts as that IPv4 address.
        inner = meant(address)
        return any(item.has_address(inner) and item.has_port(port) for item in self.allow)


def parse_policy(
    mode: str,
    allow_hosts: Iterable[str] = (),
    needed: Iterable[tuple[str, int]] = (),
    models: Iterable[tuple[str, int]] = (),
) -> Policy:
    """Return the policy of a spec; raises BadHost for an invalid entry."""
    return Policy(
        mode=Mode(mode),
        allow=tuple(parse_pattern(text) for text in allow_hosts),
        needed=_normalized(needed),
        models=_normalized(models),
    )


def parse_pattern(text: str) -> Pattern:
    """Parse one entry: a name, `*.name`, an address or a network, each with or without `:port`."""
    try:
        return _parse_pattern(text)
    except ValueError as exc:
        raise BadHost(f"`{text}` cannot be allowed: {exc}") from exc


def show(host: str | Address, port: int) -> str:
    """Format host and port as an entry of a list."""
    shown = f"[{host}]" if isinstance(host, ipaddress.IPv6Address) else str(host)
    return shown if port in DEFAULT_PORTS else f"{shown}:{port}"


def from_json(text: str | bytes) -> Policy:
    """Parse a policy from JSON; raises ValueError if it is invalid.

    Its members are the arguments of `parse_policy`; hosts with ports are arrays of both.
    """
    value: Any = json.loads(text)
    try:
        return parse_policy(
            str(value["mode"]),
            [str(item) for item in value.get("allow_hosts", ())],
            [(str(host), int(port)) for host, port in value.get("needed", ())],
            [(str(host), int(port)) for host, port in value.get("models", ())],
        )
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError("a policy has `mode`, `allow_hosts` and `needed`") from exc


def order_addresses(found: Sequence[Address]) -> list[Address]:
    """Return each address once, IPv4 first, because not every machine has an IPv6 route."""
    return sorted(dict.fromkeys(found), key=lambda address: address.version)


def _normalized(hosts: Iterable[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    return frozenset((str(parse_host(host)), port) for host, port in hosts)


def _parse_pattern(text: str) -> Pattern:
    if "/" in text:
        return _parse_network(text)
    rest, port = split_port(text)
    if rest.startswith("*."):
        name = parse_host(rest[2:])
        if not isinstance(name, str) or "." not in name:
            raise BadHost("a wildcard must precede a domain, such as `*.example.org`")
        return Pattern(name=name, is_wildcard=True, port=port)
    host = parse_host(rest)
    if isinstance(host, str):
        return Pattern(name=host, port=port)
    return Pattern(network=ipaddress.ip_network(meant(host)), port=port)


def _parse_network(text: str) -> Pattern:
    base, _, tail = text.partition("/")
    length, colon, digits = tail.partition(":")
    port = split_port(f"x:{digits}")[1] if colon else None
    network = ipaddress.ip_network(f"{base.strip('[]')}/{length}")
    return Pattern(network=network, port=port)
