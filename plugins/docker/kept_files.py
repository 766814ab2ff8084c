"""The directories of a container that hold its sandbox's files: home and working directory."""

from agentsvc.plugin import kept_directories

from . import inspection
from .engine import Engine
from .plan import Json, home_in
from .streams import read_file


async def paths_of(engine: Engine, container: Json, *, may_have_state: bool = False) -> list[str]:
    """Return the directories as `kept_directories` does."""
    settings = container.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in settings.get("Env") or [])
    work = inspection.labels_of(container).get("agentsvc.workdir", "")
    home = env.get("HOME")
    if not home:
        passwd = await read_file(engine, container["Id"], "/etc/passwd")
        home = home_in(settings.get("User") or "", passwd)
    return kept_directories(env, work, home, may_have_state=may_have_state)
