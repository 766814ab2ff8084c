"""What the agent server of a process sandbox imports first.

It has the agent server listen on the socket that it was passed, so that nobody else can have bound
its port meanwhile, and keeps its files in the sandbox: the agent server and its browser package put
some straight into /tmp, whatever TMPDIR says; there a sandbox that is deleted would leave them.
Imported by `--import-modules`, with the standard library alone; where there is no such package, or it
has another shape, nothing is changed.
"""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agentsvc.backends import browser, trust
from agentsvc.backends.children import LISTENER

_CONFIG: Final = "openhands.agent_server.config"
_OWN: Final = (
    *("OH_ALLOW_CORS_ORIGINS", "OH_ENABLE_VSCODE", "OH_LEASE_TTL_SECONDS", "OH_PRELOAD_TOOLS"),
    "OH_WEBHOOKS",
)
"""How the names of variables begin that are the agent server's alone, which reads them once."""


def settle() -> None:
    """Say where it listens and where worktrees and downloads go, and have the configuration read."""
    _listen_on(os.environ.pop(LISTENER, ""))
    os.environ.setdefault("OH_CONVERSATION_WORKTREE_ROOT", str(Path.home() / "worktrees"))
    _keep_configuration()
    browser.settle_here()
    trust.settle_here()


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


settle()
