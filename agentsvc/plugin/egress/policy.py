"""Egress policies: allowed hosts, their patterns, and the decision.

Pure: names are resolved elsewhere, and what they resolved to is asked about here.
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
"""What a pattern without a port allows."""

type Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Mode(StrEnum):
    """How far a sandbox may reach."""

    NONE = "none"
    """Nowhere but to what the server itself needs it to reach."""
    ALLOWLIST = "allowlist"
    """To the hosts of the list, too."""
    OPEN = "open"
    """To every public address, too."""
    ELSEWHERE = "elsewhere"
    """To every address that is not of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One entry of the list; without a port it means 80 and 443."""

    name: str = ""
    """A host's name, or with `is_wildcard` the domain above those that are meant."""
    is_wildcard: bool = False
    network: Network | None = None
    port: int | None = None

    def has_port(self, port: int) -> bool:
        """Say whether the port is one this pattern allows."""
        return port == self.port if self.port else port in DEFAULT_PORTS

    def has_name(self, name: str) -> bool:
        """Say whether the name is one this pattern allows."""
        if self.is_wildcard:
            return name.endswith(f".{self.name}")
        return bool(self.name) and name == self.name

    def has_address(self, address: Address) -> bool:
        """Say whether the address is one this pattern names."""
        return self.network is not None and address in self.network


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Where one sandbox may connect to."""

    mode: Mode = Mode.NONE
    allow: tuple[Pattern, ...] = ()
    needed: frozenset[tuple[str, int]] = frozenset()
    """Hosts with their ports, in one spelling, that are reached in every mode and at any
    address but link-local ones: the server's own for what the agent reports, and models that the
    operator knows."""
    models: frozenset[tuple[str, int]] = frozenset()
    """The same, at public addresses only: users say where their models are."""

    def is_needed(self, host: str | Address, port: int) -> bool:
        """Say whether this very host and port are always reached."""
        return (str(host), port) in self.needed

    def is_model(self, host: str | Address, port: int) -> bool:
        """Say whether this very host and port are those of a user's model."""
        return (str(host), port) in self.models

    def refuse_host(self, host: str | Address, port: int) -> str:
        """Say why a host is not reached, whatever its address; empty if it may be."""
        if self.is_needed(host, port) or self.is_model(host, port):
            return ""
        if self.mode is Mode.NONE:
            return 'this sandbox has no network: its spec says `network = "none"`'
        if self._is_listed(host, port) or self.mode in (Mode.OPEN, Mode.ELSEWHERE):
            return ""
        return f"it is not in `allow_hosts` of this sandbox's spec; add `{show(host, port)}`"

    def refuse_address(self, host: str | Address, port: int, address: Address) -> str:
        """Say why a host that may be reached is not at this address; empty if it is."""
        if self._is_address_listed(address, port):
            return ""
        # Nothing of ours is there, but what tells a cloud's machines their secrets.
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
        # To connect to no address at all is to connect to this machine.
        is_here = inner.is_unspecified or inner.is_loopback or is_own(inner)
        return not (is_here or inner.is_multicast or is_metadata_service(inner))

    def _is_listed(self, host: str | Address, port: int) -> bool:
        if isinstance(host, str):
            return any(item.has_name(host) and item.has_port(port) for item in self.allow)
        return self._is_address_listed(host, port)

    def _is_address_listed(self, address: Address, port: int) -> bool:
        # An IPv4 address that is carried in one of IPv6 is that IPv4 address.
        inner = meant(address)
        return any(item.has_address(inner) and item.has_port(port) for item in self.allow)


def parse_policy(
    mode: str,
    allow_hosts: Iterable[str] = (),
    needed: Iterable[tuple[str, int]] = (),
    models: Iterable[tuple[str, int]] = (),
) -> Policy:
    """Return the policy of a spec; raises BadHost for an entry that cannot be meant."""
    return Policy(
        mode=Mode(mode),
        allow=tuple(parse_pattern(text) for text in allow_hosts),
        needed=_known(needed),
        models=_known(models),
    )


def parse_pattern(text: str) -> Pattern:
    """Read one entry: a name, `*.name`, an address, a network; each with `:port` or without."""
    try:
        return _parse_pattern(text)
    except ValueError as exc:
        raise BadHost(f"`{text}` cannot be allowed: {exc}") from exc


def show(host: str | Address, port: int) -> str:
    """Return host and port as one writes them in a list."""
    shown = f"[{host}]" if isinstance(host, ipaddress.IPv6Address) else str(host)
    return shown if port in DEFAULT_PORTS else f"{shown}:{port}"


def from_json(text: str | bytes) -> Policy:
    """Return the policy of a document; raises ValueError for what is none.

    It has the arguments of `parse_policy` as members, hosts with their ports as arrays of both.
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
    """Return each address once, IPv4 first: not every machine has a way out by IPv6."""
    return sorted(dict.fromkeys(found), key=lambda address: address.version)


def _known(hosts: Iterable[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    return frozenset((str(parse_host(host)), port) for host, port in hosts)


def _parse_pattern(text: str) -> Pattern:
    if "/" in text:
        return _parse_network(text)
    rest, port = split_port(text)
    if rest.startswith("*."):
        name = parse_host(rest[2:])
        if not isinstance(name, str) or "." not in name:
            raise BadHost("a wildcard stands before a domain, such as `*.example.org`")
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
