"""A cable between this machine and another network on it, such as an engine's, to be cut and mended."""

import os
import subprocess
from types import TracebackType
from typing import Final, Protocol, Self

_INSIDE: Final = "cable0"


class Network(Protocol):
    """A network on this machine, and a process that is in it."""

    @property
    def keeper(self) -> int: ...


class Cable:
    """A pair of linked interfaces; it ends with the other network, if not before."""

    def __init__(self, network: Network, number: int) -> None:
        """Choose the addresses, from a network for benchmarks; no other process has the same."""
        part = (os.getpid() % 2**12) * 2 + number
        address = f"198.18.{part // 32}.{part % 32 * 8}"
        first, _, last = address.rpartition(".")
        self.near = f"{first}.{int(last) + 1}"
        self.far = f"{first}.{int(last) + 2}"
        self._name = f"asvc{part}"
        self._network = network

    def __enter__(self) -> Self:
        keeper = str(self._network.keeper)
        peer = ("peer", "name", _INSIDE, "netns", keeper)
        _run("ip", "link", "add", self._name, "type", "veth", *peer)
        try:
            _run("ip", "address", "add", f"{self.near}/29", "dev", self._name)
            _run("ip", "link", "set", self._name, "up")
            self._run_inside("address", "add", f"{self.far}/29", "dev", _INSIDE)
            self.mend()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def cut(self) -> None:
        """Let nothing through; connections stay open and silent at both ends."""
        self._run_inside("link", "set", _INSIDE, "down")

    def mend(self) -> None:
        """Let everything through again."""
        self._run_inside("link", "set", _INSIDE, "up")

    def _run_inside(self, *arguments: str) -> None:
        _run("nsenter", "--target", str(self._network.keeper), "--net", "ip", *arguments)

    def _remove(self) -> None:
        subprocess.run(["ip", "link", "delete", self._name], check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
