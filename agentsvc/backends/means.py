"""What this machine has to hold sandboxes as processes, and how they are held with it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agentsvc.backend import Fences, Isolation, Network
from agentsvc.backends import bubblewrap, doors, groups, landlock, uplink, users
from agentsvc.backends.look import MACHINES_NETWORK, OWN_NETWORK
from agentsvc.backends.processconfig import ProcessConfig

log = logging.getLogger(__name__)

_BY_PROCESS: Final = frozenset({"disk_bytes", "open_files"})
"""Limits that need no control group."""
_BY_USER: Final = frozenset({"pids"})
"""Limits that need none where each sandbox has a user of its own."""


class Means:
    """Control groups, users, bubblewrap and Landlock, as far as they were found and are wanted."""

    def __init__(self, config: ProcessConfig, callback: str) -> None:
        self._config = config
        self._callback = callback
        self._confines = False
        self.groups = groups.Groups()
        self.users = users.Users()
        self.bubblewrap = bubblewrap.Found(reason="the backend is not open")

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

    def fences(self) -> Fences:
        """Say whether bubblewrap or Landlock holds sandboxes here, and what limits them."""
        found = self.bubblewrap
        limits = self._limits()
        if not found.program:
            remedy = f"{found.reason}: {found.remedy}" if found.remedy else found.reason
            return Fences(
                isolation=self._isolation(),
                remedy=remedy,
                networks=frozenset() if self._config.own_network else frozenset({Network.OPEN}),
                network_remedy=remedy,
                limits=limits,
            )
        networks = set(Network if self._has_doors() else {Network.OPEN})
        if self._config.own_network and self._why_no_uplink():
            networks.discard(Network.OPEN)
        return Fences(
            isolation=Isolation.BUBBLEWRAP,
            networks=frozenset(networks),
            network_remedy=self._why_no_uplink() if self._config.own_network else "",
            limits=limits,
        )

    def readable(self) -> tuple[Path, ...] | None:
        """Return what sandboxes may read where Landlock alone holds them, and None elsewhere."""
        if self._isolation() is not Isolation.LANDLOCK:
            return None
        return (*bubblewrap.environment(), *(Path(path) for path in self._config.readable))

    def facts(self) -> dict[str, str]:
        """Say what was found, for the operator."""
        return {
            "cgroup": self.groups.describe(),
            "limits": ", ".join(sorted(self._limits())),
            "isolation": self._isolation(),
            "landlock": landlock.describe(landlock.abi()),
            "bubblewrap": self.bubblewrap.program or self.bubblewrap.reason,
            "users": self.users.describe(),
            "open network": self._open_network(),
        }

    def _has_doors(self) -> bool:
        return not self._callback or doors.is_loopback(self._callback)

    def _why_no_uplink(self) -> str:
        if not self._has_doors():
            return f"`internal_url` is not on the loopback interface: {self._callback}"
        return uplink.why_not()

    def _open_network(self) -> str:
        if not self._config.own_network:
            return MACHINES_NETWORK
        if not self.bubblewrap.program:
            return "none: bubblewrap does not hold sandboxes"
        why_not = self._why_no_uplink()
        return f"none: {why_not}" if why_not else OWN_NETWORK

    def _limits(self) -> frozenset[str]:
        return self.groups.limits() | _BY_PROCESS | (_BY_USER if self.users else set())

    def _isolation(self) -> Isolation:
        if self.bubblewrap.program:
            return Isolation.BUBBLEWRAP
        return Isolation.LANDLOCK if self._confines else Isolation.NONE

    def _find_bubblewrap(self, state_dir: Path) -> bubblewrap.Found:
        if not self._config.use_bubblewrap:
            return bubblewrap.Found(
                reason="`use_bubblewrap` is false", remedy="set `backends.process.use_bubblewrap`"
            )
        more = tuple(Path(path) for path in self._config.readable)
        user = users.candidate(self._config.uids)
        return bubblewrap.find(state_dir, more, user=user)
