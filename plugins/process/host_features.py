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
"""Limits that need none where each sandbox has a user of its own."""
_LISTEN: Final = "set server.internal_url to http://127.0.0.1 and the port, and listen there"


class HostFeatures:
    """Control groups, users, bubblewrap and Landlock, as far as they were found and are wanted."""

    def __init__(self, config: ProcessConfig, callback: str) -> None:
        self._config = config
        self.callback = callback
        """Host and port at which sandboxes find the server."""
        self._confines = False
        self.groups = groups.Groups()
        self.users = users.Users()
        self.bubblewrap = bubblewrap.Probe(reason="the backend is not open")

    def find(self, state_dir: Path, taken: Mapping[str, int]) -> None:
        """Find out what can be used; sandboxes that there are already have the users `taken`. Blocks."""
        self.groups = groups.find() if self._config.use_cgroups else groups.Groups()
        self.bubblewrap = self._find_bubblewrap(state_dir)
        self.users = users.find(self._config.uids, self.bubblewrap, taken)
        self._confines = self._config.use_landlock and landlock.is_usable()
        if not self.bubblewrap.program:
            log.warning(
                "sandboxes see this machine: Landlock keeps them from files and signals only"
                if self._confines
                else "sandboxes are not isolated: they run with the rights of the server's user",
                extra={"reason": self.bubblewrap.reason, "remedy": self.bubblewrap.remedy},
            )
        for advice in self.advice():
            log.warning(advice.text, extra={"remedy": advice.remedy})

    def fences(self) -> Fences:
        """Say whether bubblewrap or Landlock holds sandboxes here, and what limits them."""
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
            networks=frozenset(Network if self._has_doors() else {Network.OPEN}),
            network_remedy="" if self._has_doors() else self._why_no_doors(),
            limits=limits,
        )

    def isolation(self) -> Isolation:
        """Return how far sandboxes that start now are kept from everything else."""
        if self.bubblewrap.program:
            return Isolation.BUBBLEWRAP
        return Isolation.LANDLOCK if self._confines else Isolation.NONE

    def way_out(self) -> OutboundNetwork:
        """Return how a sandbox that starts now gets out if its network is open. Blocks."""
        if not self.bubblewrap.program or self._config.network is OpenNetwork.HOST:
            return OutboundNetwork.HOST
        return OutboundNetwork.PROXY if self._why_no_uplink() else OutboundNetwork.SLIRP

    def readable(self) -> tuple[Path, ...] | None:
        """Return what sandboxes may read where Landlock alone holds them, and None elsewhere."""
        if self.isolation() is not Isolation.LANDLOCK:
            return None
        return (*bubblewrap.environment(), *(Path(path) for path in self._config.readable))

    def confinement(self) -> Confinement:
        """Say how the zygote is kept from the machine, and why there may be none."""
        if not self.bubblewrap.program:
            return Confinement(
                refusal="bubblewrap does not hold sandboxes here, nor would it hold it"
            )
        if os.geteuid() == 0 and not self.users:
            return Confinement(
                refusal="it would be root: sandboxes have no users of their own here"
            )
        if os.geteuid() != 0 and not landlock.can_scope():
            return Confinement(
                refusal="it could send signals to the server, which Linux prevents since 6.12"
            )
        if platform.machine() not in seccomp.MACHINES:
            # By their numbers it could enter sandboxes that it was not handed.
            return Confinement(refusal="no filter of system calls is known for this processor")
        return Confinement(
            program=self.bubblewrap.program,
            readable=self.bubblewrap.readable,
            users=self.users,
            shares_network=self._config.network is OpenNetwork.HOST,
        )

    def why_no_reclaim(self) -> str:
        """Say why memory of paused sandboxes can be pushed out nowhere now. Blocks."""
        return reclaiming.why_not(self.groups.unified, self.groups.controllers)

    def facts(self) -> dict[str, str]:
        """Say what was found, for the operator."""
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
        """Say what the network of open sandboxes lacks."""
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
            remedy = "apt-get install slirp4netns" if self._has_doors() else _LISTEN
            yield Advice(subject="network", text=text, remedy=remedy)

    def _has_doors(self) -> bool:
        return not self.callback or proxy_sockets.is_loopback(self.callback)

    def _why_no_uplink(self) -> str:
        return uplink.why_not() if self._has_doors() else self._why_no_doors()

    def _why_no_doors(self) -> str:
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
