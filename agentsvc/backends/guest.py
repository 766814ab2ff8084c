"""What the agent server of a process sandbox imports first: it keeps its files in the sandbox.

The agent server and its browser package put some straight into /tmp, whatever TMPDIR says; there a
sandbox that is deleted would leave them. Imported by `--import-modules`, with the standard library
alone; where there is no such package, or it has another shape, nothing is changed.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

from agentsvc.backends import browser, trust

_CONFIG: Final = "openhands.agent_server.config"
_OWN: Final = (
    *("OH_ALLOW_CORS_ORIGINS", "OH_ENABLE_VSCODE", "OH_LEASE_TTL_SECONDS", "OH_PRELOAD_TOOLS"),
    "OH_WEBHOOKS",
)
"""How the names of variables begin that are the agent server's alone, which reads them once."""


def settle() -> None:
    """Say where worktrees and downloads go, and have the configuration read."""
    os.environ.setdefault("OH_CONVERSATION_WORKTREE_ROOT", str(Path.home() / "worktrees"))
    _keep_configuration()
    browser.settle_here()
    trust.settle_here()


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
