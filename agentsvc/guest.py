"""Adapts the agent server in a process sandbox; the agent server imports it first.

It makes the agent server listen on the socket that was passed to it, so that no other process can bind its
port meanwhile, and keeps its files in the sandbox: the browser package ignores TMPDIR and puts
downloads into /tmp, which may not be the sandbox's own.
Imported by `--import-modules`, with the standard library only; if a package is missing or has changed, it
is left as it is.
"""

import contextlib
import importlib
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Final

LISTENER: Final = "AGENTSVC_LISTENER"
"""The variable with the descriptor of the socket that an agent server has to listen on."""

_CONFIG: Final = "openhands.agent_server.config"
_TEMP: Final = "/tmp"  # noqa: S108  # where the browser package puts downloads
_DOWNLOADS: Final = ("downloads_path", "downloads_dir", "save_downloads_path")
_OWN: Final = (
    *("OH_ALLOW_CORS_ORIGINS", "OH_ENABLE_VSCODE", "OH_LEASE_TTL_SECONDS", "OH_PRELOAD_TOOLS"),
    *("OH_WEBHOOKS", "COLUMNS", "LOG_RICH_TRACEBACKS", "OPENHANDS_SUPPRESS_BANNER"),
)
"""Prefixes of variables that only the agent server needs, which reads them once."""


def settle() -> None:
    """Apply all adaptations."""
    _listen_on(os.environ.pop(LISTENER, ""))
    _keep_configuration()
    if os.environ.get("TMPDIR", _TEMP) != _TEMP:
        _keep_downloads()


def _listen_on(number: str) -> None:
    """Make uvicorn listen on the socket with this descriptor, if it is one."""
    try:
        passed = socket.socket(fileno=int(number))
    except (OSError, ValueError):
        return
    passed.set_inheritable(False)
    server: Any = getattr(sys.modules.get("uvicorn"), "Server", None)
    if server is None:
        passed.close()  # so that the port can be bound by its number
        return
    run = server.run

    def run_on(self: object, sockets: Sequence[socket.socket] | None = None) -> None:
        run(self, sockets=sockets or [passed])

    server.run = run_on


def _keep_configuration() -> None:
    """Load the agent server's configuration, and remove its variables from the environment of commands.

    A terminal takes some milliseconds for each variable. A server with deferred initialization
    reads them again, so they are kept.
    """
    config: Any = sys.modules.get(_CONFIG)
    if not hasattr(config, "get_default_config") or "OH_DEFERRED_INIT" in os.environ:
        return
    config.get_default_config()
    for name in [name for name in os.environ if name.startswith(_OWN)]:
        del os.environ[name]


def _keep_downloads() -> None:
    """Give every browser profile without a download directory one in TMPDIR."""
    profile: Any = None
    with contextlib.suppress(ImportError):
        profile = importlib.import_module("browser_use.browser.profile")
    if not hasattr(profile, "BrowserProfile"):
        return
    init = profile.BrowserProfile.__init__

    def with_downloads(self: object, **fields: Any) -> None:
        if not any(map(fields.get, _DOWNLOADS)):
            fields["downloads_path"] = tempfile.mkdtemp(prefix="downloads-")
        init(self, **fields)

    profile.BrowserProfile.__init__ = with_downloads


settle()
