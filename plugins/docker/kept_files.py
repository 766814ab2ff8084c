"""Which directories of a container are the files of its sandbox: its home and its working directory."""

import posixpath
from typing import Final

from agentsvc.base import OrderRejected
from agentsvc.plugin import is_below

from . import look
from .engine import Engine
from .plan import Json, home_in
from .streams import read_file

_STATE: Final = ("OH_CONVERSATIONS_PATH", "OH_BASH_EVENTS_DIR")


async def paths_of(engine: Engine, container: Json, *, may_have_state: bool = False) -> list[str]:
    """Return the directories, none of them below another one.

    Raises OrderRejected where the agent server's own files would be among them, unless they may be.
    """
    settings = container.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in settings.get("Env") or [])
    work = look.labels_of(container).get("agentsvc.workdir", "")
    home = env.get("HOME")
    if not home:
        passwd = await read_file(engine, container["Id"], "/etc/passwd")
        home = home_in(settings.get("User") or "", passwd)
    paths = sorted({one for one in (work, posixpath.normpath(home)) if one not in ("", "/", ".")})
    for path in paths:
        if not may_have_state and any(
            env.get(name) and is_below(env[name], path) for name in _STATE
        ):
            raise OrderRejected(
                f"The agent server's own files are in {path}, which would be kept:"
                " have the spec's `working_dir` beside them"
            )
    return [one for one in paths if not any(one != top and is_below(one, top) for top in paths)]
