"""Imported first by the agent server in a process sandbox.

It has the agent server listen on the socket that it was passed, so that nobody else can have bound
its port meanwhile, and keeps its files in the sandbox: where /tmp is not the sandbox's own, the browser
package would put downloads straight there, whatever TMPDIR says.
Imported by `--import-modules`, with the standard library alone; where there is no such package, or it
has another shape, nothing is changed.
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
"""Names the descriptor of the socket that an agent server is to listen on."""

_CONFIG: Final = "openhands.agent_server.config"
_TEMP: Final = "/tmp"  # noqa: S108  # where the browser package puts downloads
_DOWNLOADS: Final = ("downloads_path", "downloads_dir", "save_downloads_path")
_OWN: Final = (
    *("OH_ALLOW_CORS_ORIGINS", "OH_ENABLE_VSCODE", "OH_LEASE_TTL_SECONDS", "OH_PRELOAD_TOOLS"),
    *("OH_WEBHOOKS", "COLUMNS", "LOG_RICH_TRACEBACKS", "OPENHANDS_SUPPRESS_BANNER"),
)
"""How the names of variables begin that are the agent server's alone, which reads them once."""


def settle() -> None:
    """Say where it listens and where downloads go, and have the configuration read."""
    _listen_on(os.environ.pop(LISTENER, ""))
    _keep_configuration()
    if os.environ.get("TMPDIR", _TEMP) != _TEMP:
        _keep_downloads()


def _listen_on(number: str) -> None:
    """Have its web server listen on the socket that is open as that number, if one is."""
    try:
        passed = socket.socket(fileno=int(number))
    except (OSError, ValueError):
        return
    passed.set_inheritable(False)
    server: Any = getattr(sys.modules.get("uvicorn"), "Server", None)
    if server is None:
        passed.close()  # it is free to be bound by number
        return
    run = server.run

    def run_on(self: object, sockets: Sequence[socket.socket] | None = None) -> None:
        run(self, sockets=sockets or [passed])

    server.run = run_on


def _keep_configuration() -> None:
    """Have the agent server read its configuration, and keep from commands what is of no use to them.

    A terminal takes some milliseconds for each variable. A server that is yet to hear for whom it
    is reads them again.
    """
    config: Any = sys.modules.get(_CONFIG)
    if not hasattr(config, "get_default_config") or "OH_DEFERRED_INIT" in os.environ:
        return
    config.get_default_config()
    for name in [name for name in os.environ if name.startswith(_OWN)]:
        del os.environ[name]


def _keep_downloads() -> None:
    """Give each profile of a browser that has no directory for downloads one in TMPDIR."""
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
