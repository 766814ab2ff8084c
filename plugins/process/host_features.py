"""Detects the isolation features of this machine and chooses how process sandboxes use them."""

import logging
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from agentsvc.plugin import Advice, Fences, Isolation, Network

from . import bubblewrap, groups, landlock, proxy_sockets, reclaiming, seccomp, uplink, users
from .inspection import NETWORKS
from .sandbox_directory import OutboundNetwork
from .settings import OpenNetwork, ProcessConfig
from .zygote import Confinement

log = logging.getLogger(__name__)

_BY_PROCESS: Final = frozenset({"disk_bytes", "open_files"})
"""Limits that need no control group."""
_BY_USER: Final = frozenset({"pids"})
"""Limits that need no control group if each sandbox has a user of its own."""
_LISTEN: Final = "set server.internal_url to http://127.0.0.1 and the port, and listen there"


class HostFeatures:
    """Control groups, users, bubblewrap and Landlock, as detected and as configured."""

    def __init__(self, config: ProcessConfig, callback: str) -> None:
        self._config = config
        self.callback = callback
        """Host and port of the server as sandboxes reach it."""
        self._confines = False
        self.groups = groups.Groups()
        self.users = users.Users()
        self.bubblewrap = bubblewrap.Probe(reason="the backend is not open")

    def find(self, state_dir: Path, taken: Mapping[str, int]) -> None:
        """Detect all features; `taken` are the user ids of existing sandboxes. Blocks."""
        self.groups = groups.find() if self._config.use_cgroups else groups.Groups()
        self.bubblewrap = self._find_bubblewrap(state_dir)
        self.users = users.find(self._config.uids, self.bubblewrap, taken)
        self._confines = self._config.use_landlock and landlock.is_usable()
        if not self.bubblewrap.program:
            log.warning(
                "sandboxes see this machine: Landlock only restricts files and signals"
                if self._confines
                else "sandboxes are not isolated: they run with the rights of the server's user",
                extra={"reason": self.bubblewrap.reason, "remedy": self.bubblewrap.remedy},
            )
        for advice in self.advice():
            log.warning(advice.text, extra={"remedy": advice.remedy})

    def fences(self) -> Fences:
        """Report whether bubblewrap or Landlock isolates sandboxes here, and which limits apply."""
        found = self.bubblewrap
        limits = self._limits()
        if not found.program:
            ways = [found.remedy] if found.remedy else []
            if os.geteuid() == 0:
                ways.append("run the server as an ordinary user")
            return Fences(
                isolation=self.isolation(),
                reason=found.reason,
                remedy=", or ".join(ways),
                network_remedy=": ".join(filter(None, (found.reason, found.remedy))),
                limits=limits,
            )
        return Fences(
            isolation=Isolation.BUBBLEWRAP,
            networks=frozenset(Network if self._has_proxy_sockets() else {Network.OPEN}),
            network_remedy="" if self._has_proxy_sockets() else self._why_no_proxy_sockets(),
            limits=limits,
        )

    def isolation(self) -> Isolation:
        """Return the isolation of sandboxes that start now."""
        if self.bubblewrap.program:
            return Isolation.BUBBLEWRAP
        return Isolation.LANDLOCK if self._confines else Isolation.NONE

    def way_out(self) -> OutboundNetwork:
        """Return the outbound network of an open sandbox that starts now. Blocks."""
        if not self.bubblewrap.program or self._config.network is OpenNetwork.HOST:
            return OutboundNetwork.HOST
        return OutboundNetwork.PROXY if self._why_no_uplink() else OutboundNetwork.SLIRP

    def readable(self) -> tuple[Path, ...] | None:
        """Return the paths that sandboxes may read, or None unless Landlock alone isolates them."""
        if self.isolation() is not Isolation.LANDLOCK:
            return None
        return (*bubblewrap.environment(), *(Path(path) for path in self._config.readable))

    def confinement(self) -> Confinement:
        """Return how the zygote is isolated, or why there is no zygote."""
        if not self.bubblewrap.program:
            return Confinement(refusal="bubblewrap does not work here, and the zygote needs it")
        if os.geteuid() == 0 and not self.users:
            return Confinement(
                refusal="it would run as root: sandboxes have no users of their own here"
            )
        if os.geteuid() != 0 and not landlock.can_scope():
            return Confinement(
                refusal="it could send signals to the server, which Linux prevents since 6.12"
            )
        if platform.machine() not in seccomp.MACHINES:
            # Without the filter it could enter sandboxes by pid that it was not asked to enter.
            return Confinement(refusal="there is no seccomp filter for this processor")
        return Confinement(
            program=self.bubblewrap.program,
            readable=self.bubblewrap.readable,
            users=self.users,
            shares_network=self._config.network is OpenNetwork.HOST,
        )

    def why_no_reclaim(self) -> str:
        """Return why memory of paused sandboxes cannot be pushed out now, or nothing. Blocks."""
        return reclaiming.why_not(self.groups.unified, self.groups.controllers)

    def facts(self) -> dict[str, str]:
        """Describe the detected features for the operator."""
        return {
            "cgroup": self.groups.describe(),
            "limits": ", ".join(sorted(self._limits())),
            "isolation": self.isolation(),
            "landlock": landlock.describe(landlock.abi()),
            "bubblewrap": self.bubblewrap.program or self.bubblewrap.reason,
            "users": self.users.describe(),
            "open network": self._open_network(),
        }

    def advice(self) -> Iterator[Advice]:
        """Warn if open sandboxes share the host's network, or have a proxy only."""
        way_out = self.way_out()
        if way_out is OutboundNetwork.HOST and self.bubblewrap.program:
            text = (
                "open sandboxes share the network of this machine: they reach all that listens on its"
                ' loopback interface, and each other, by `network = "host"` in [backends.process]'
            )
            yield Advice(subject="network", text=text, remedy="remove that line")
        elif way_out is OutboundNetwork.PROXY:
            text = "sandboxes with the network `open` reach other hosts by HTTP and HTTPS through a proxy only"
            text = f"{text}: {self._why_no_uplink()}"
            remedy = "apt-get install slirp4netns" if self._has_proxy_sockets() else _LISTEN
            yield Advice(subject="network", text=text, remedy=remedy)

    def _has_proxy_sockets(self) -> bool:
        return not self.callback or proxy_sockets.is_loopback(self.callback)

    def _why_no_uplink(self) -> str:
        return uplink.why_not() if self._has_proxy_sockets() else self._why_no_proxy_sockets()

    def _why_no_proxy_sockets(self) -> str:
        return f"`internal_url` is not at 127.0.0.1 or localhost: {self.callback}"

    def _open_network(self) -> str:
        way_out = self.way_out()
        reason = f": {self._why_no_uplink()}" if way_out is OutboundNetwork.PROXY else ""
        return f"{NETWORKS[way_out]}{reason}"

    def _limits(self) -> frozenset[str]:
        return self.groups.limits() | _BY_PROCESS | (_BY_USER if self.users else set())

    def _find_bubblewrap(self, state_dir: Path) -> bubblewrap.Probe:
        if not self._config.use_bubblewrap:
            return bubblewrap.Probe(
                reason="`use_bubblewrap` is false", remedy="set `backends.process.use_bubblewrap`"
            )
        more = tuple(Path(path) for path in self._config.readable)
        user = users.candidate(self._config.uids)
        return bubblewrap.find(state_dir, more, user=user)
