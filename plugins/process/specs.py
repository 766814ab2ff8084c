"""The built-in spec of the process backend, and validation of specs."""

import importlib.metadata
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agentsvc.base import OrderRejected
from agentsvc.plugin import Order, Port, Spec, check_hosts, fill

ZYGOTE: Final = "zygote"
"""The option of a spec that is false if its agent server must not be forked from the zygote."""

AGENT_SERVER: Final = "openhands.agent_server"
"""The module of the agent server."""

GUEST: Final = "agentsvc.guest"
"""The module that makes an agent server listen on a socket that it inherits."""

_OLD_GUEST: Final = "agentsvc.backends.guest"
"""Its name before 0.2; supported in configured specs and existing sandboxes for one more
release."""

_HOST: Final = "127.0.0.1"

DEFAULT_SPEC: Final = Spec(
    id="process",
    backend="process",
    command=(
        "{python}",
        *("-m", AGENT_SERVER),
        *("--import-modules", GUEST),
        *("--host", _HOST),
        *("--port", "{port.agent}"),
    ),
    env={
        # Without it, a start without internet is slow and may fail at import.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "OH_ENABLE_VSCODE": "false",
        # It would load a browser at each start, and complain if there is none.
        "OH_PRELOAD_TOOLS": "false",
        "WORKER_1": "{port.worker_1}",
        "WORKER_2": "{port.worker_2}",
    },
    ports=(
        Port(name="agent"),
        Port(name="worker_1", awaited=False),
        Port(name="worker_2", awaited=False),
    ),
)
"""The spec that exists without any configuration."""


def current(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command with the old name of `GUEST` replaced."""
    return tuple(
        ",".join(GUEST if name == _OLD_GUEST else name for name in part.split(","))
        if before == "--import-modules"
        else part
        for before, part in zip(("", *command), command, strict=False)
    )


def passed_port(command: Sequence[str]) -> str:
    """Return the name of the port whose socket the command inherits; empty if none.

    It is the port of an agent server that imports `GUEST`.
    """
    options = dict(itertools.pairwise(current(command)))
    port = options.get("--port", "")
    takes_one = GUEST in options.get("--import-modules", "").split(",")
    is_named = port.startswith("{port.") and port.endswith("}")
    return port[len("{port.") : -1] if takes_one and is_named else ""


def agent_version() -> str:
    """Return the version of the installed agent server, or an empty string."""
    try:
        return importlib.metadata.version("openhands-agent-server")
    except importlib.metadata.PackageNotFoundError:
        return ""


def check(asked: Spec | Order) -> None:
    """Raise OrderRejected for unsupported images, options, hosts and directories."""
    if asked.command is None or not asked.command:
        raise OrderRejected("A process sandbox needs a command")
    if asked.image:
        raise OrderRejected("A process sandbox has no image")
    if unknown := asked.options.keys() - {ZYGOTE}:
        raise OrderRejected(f"The process backend has no option `{min(unknown)}`")
    if not isinstance(asked.options.get(ZYGOTE, True), bool):
        raise OrderRejected(f"The option `{ZYGOTE}` is either true or false")
    check_hosts(asked)
    directory = Path(asked.working_dir)
    if directory.is_absolute() or ".." in directory.parts:
        raise OrderRejected("The working directory must be a relative path inside the workspace")
    ports = {port.name: port.number for port in asked.ports}
    if len(ports) != len(asked.ports):
        raise OrderRejected("Two ports have the same name")
    for text in (*asked.command, *asked.env.values()):
        fill(text, ports)
