"""Closes this machine's ports to a sandbox whose network is open.

An engine filters forwarded packets, but not those to the machine itself. If this server is root on
the engine's machine, it adds rules for the sandbox's own bridge, and removes them with the network.
Podman gives every bridge an address, so with Podman the inner networks need rules, too.
"""

import asyncio
import ipaddress
import os
import shutil
import socket
from collections.abc import Iterable

from agentsvc.base import BackendUnavailable, monotonic
from agentsvc.plugin import finish
from agentsvc.plugin.egress.addresses import is_own

type Rule = tuple[str, ...]

_PROGRAM = "iptables"
_PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
_WAIT = ("-w", "10")
_POLL_SECONDS = 2.0


def can_guard() -> bool:
    """Return whether this process may change the machine's firewall."""
    return os.geteuid() == 0 and _program() is not None


def rules(bridge: str, ports: Iterable[int], dns_address: str = "") -> list[Rule]:
    """Return the rules of one bridge in reverse order, because each is inserted at the top.

    `dns_address` is the address of the network's own DNS server, if it has one there.
    """
    on = ("INPUT", "-i", bridge)
    return [
        (*on, "-j", "DROP"),
        (*on, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
        *((*on, "-p", "tcp", "--dport", str(port), "-j", "ACCEPT") for port in ports),
        *(
            ("INPUT", "-d", dns_address, "-i", bridge, "-p", kind, "--dport", "53", "-j", "ACCEPT")
            for kind in ("tcp", "udp")
            if dns_address
        ),
    ]


def own_ports(targets: Iterable[str]) -> list[int]:
    """Return the ports of the `host:port` targets on this machine. Resolves names; blocks."""
    found = []
    for target in targets:
        host, _, port = target.rpartition(":")
        try:
            found_at = socket.getaddrinfo(host.strip("[]"), int(port), socket.AF_INET)
        except OSError:
            continue
        if any(is_own(ipaddress.ip_address(item[4][0])) for item in found_at):
            found.append(int(port))
    return found


async def close(bridge: str, ports: Iterable[int], dns_address: str = "") -> None:
    """Block all packets from a bridge to this machine except to these ports; idempotent."""
    for rule in rules(bridge, ports, dns_address):
        if not await _do("-C", rule) and not await _do("-I", rule):
            raise BackendUnavailable(
                "This machine's ports cannot be closed to the sandbox;"
                " set `guard_host = false` to run it all the same",
                detail=" ".join(rule),
            )


async def reopen(bridge: str) -> None:
    """Remove the rules of a bridge, if there are any."""
    _, listed = await finish(_run("-S", "INPUT"))
    for rule in rules_of(bridge, listed):
        await _do("-D", rule)


def rules_of(bridge: str, listed: str) -> list[Rule]:
    """Return the rules of one bridge from the output of `iptables -S`."""
    found = [line.split() for line in listed.splitlines()]
    return [tuple(words[1:]) for words in found if words[:1] == ["-A"] and bridge in words]


class FirewallGuard:
    """Restores rules that others removed, for example by reloading the machine's firewall."""

    def __init__(self) -> None:
        self._listed = ""
        self._at = float("-inf")

    async def keep(self, bridge: str, ports: Iterable[int], dns_address: str = "") -> None:
        """Make sure that a bridge has its rules; reads them at most every few seconds."""
        wanted = rules(bridge, list(ports), dns_address)
        if monotonic() - self._at > _POLL_SECONDS:
            self._at = monotonic()
            _, self._listed = await finish(_run("-S", "INPUT"))
        if len(rules_of(bridge, self._listed)) >= len(wanted):
            return
        self._at = float("-inf")
        await reopen(bridge)
        await close(bridge, ports, dns_address)


def _program() -> str | None:
    return shutil.which(_PROGRAM, path=_PATH)


async def _do(action: str, rule: Rule) -> bool:
    status, _ = await finish(_run(action, *rule))
    return status == 0


async def _run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        _program() or _PROGRAM,
        *(*_WAIT, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return await process.wait(), output.decode()
