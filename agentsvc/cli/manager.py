"""Service manager integration: systemd notifications, and configuration reload on SIGHUP."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from agentsvc.base import StartFailed
from agentsvc.config import Loaded

log = logging.getLogger(__name__)

_RELOADED = "log.level"


class Manager:
    """Notifies systemd of the server's state; does nothing without systemd.

    Removes systemd's variables from the environment, so that no child process notifies instead of
    the server.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        is_ours = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        period = environ.pop("WATCHDOG_USEC", "")
        self.watchdog_seconds = int(period) / 2e6 if is_ours and period.isdecimal() else 0.0
        """Interval of the WATCHDOG=1 notifications; 0 if no watchdog is configured."""

    def notify(self, *lines: str) -> None:
        """Send lines such as READY=1; failures are only logged."""
        if not self._address:
            return
        name = self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(f"\0{name[1:]}" if name.startswith("@") else name)
                sender.send("\n".join(lines).encode())
        except OSError as exc:
            log.warning("service manager not notified", extra={"reason": str(exc)})


class Reload:
    """Reloads the configuration, and applies what can change while the server runs."""

    def __init__(self, manager: Manager, loaded: Loaded, read: Callable[[], Loaded]) -> None:
        self._manager = manager
        self._started = self._last = loaded
        self._read = read

    def __call__(self) -> None:
        """Reload; an invalid configuration changes nothing."""
        now_usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._manager.notify("RELOADING=1", f"MONOTONIC_USEC={now_usec}")
        try:
            loaded = self._read()
            changed = sorted(differences(self._last, loaded))
            need_restart = sorted({*differences(self._started, loaded)} - {_RELOADED})
        except (StartFailed, OSError) as exc:
            facts = {"reason": str(exc), "hint": getattr(exc, "hint", "")}
            log.error("configuration not reloaded", extra=facts)  # noqa: TRY400  # it has no traceback
        else:
            logging.getLogger().setLevel(loaded.config.log.level.upper())
            log.info("configuration reloaded", extra={"keys": changed})
            if need_restart:
                log.warning("settings changed that need a restart", extra={"keys": need_restart})
            self._last = loaded
        self._manager.notify("READY=1")


def differences(before: Loaded, after: Loaded) -> Iterator[str]:
    """Yield the dotted keys whose values differ."""
    trees = before.tree(), after.tree()
    for tree in trees:
        for section in after.sections:
            # Their settings are compared in the plugin's own section.
            tree["extensions"].pop(section, None)
    yield from _differences(*trees, "")


def _differences(before: Any, after: Any, name: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            path = f"{name}.{key}" if name else key
            yield from _differences(before.get(key), after.get(key), path)
    elif before != after:
        yield name
