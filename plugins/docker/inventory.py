"""Lists an installation's objects at an engine: its sandboxes, and all that contain its id."""

from datetime import UTC, datetime

from agentsvc.base import is_sandbox_id

from . import names
from .engine import Engine, Json
from .streams import to_time


async def sandboxes_on(engine: Engine, instance_id: str) -> dict[str, datetime]:
    """Return the ids of sandboxes with any object, and when the first of these was created."""
    first: dict[str, datetime] = {}
    for kind in ("containers", "networks", "volumes"):
        for one in await engine.listed(kind, names.of_installation(instance_id)):
            labels = one.get("Labels") or {}
            sandbox_id = labels.get(names.SANDBOX, "")
            if is_sandbox_id(sandbox_id) and names.is_own(labels, instance_id, sandbox_id):
                made = _made_at(kind, one)
                first[sandbox_id] = min(made, first.get(sandbox_id, made))
    return first


async def left_on(engine: Engine, instance_id: str) -> list[str]:
    """Return the names of all objects of the engine that contain an installation's id."""
    return [
        f"{kind} {one.get('Name') or one.get('Names') or one['Id']}"
        for kind in ("container", "network", "volume", "image")
        for one in await engine.listed(f"{kind}s")
        if instance_id in str(one)
    ]


def _made_at(kind: str, one: Json) -> datetime:
    if kind == "containers":
        return datetime.fromtimestamp(one["Created"], UTC)
    return to_time(one["CreatedAt" if kind == "volumes" else "Created"])
