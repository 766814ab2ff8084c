"""Lists an installation's objects at an engine: its sandboxes, and all that bears its id."""

from datetime import UTC, datetime

from . import names
from .engine import Engine
from .streams import to_time


async def sandboxes_on(engine: Engine, instance_id: str) -> dict[str, datetime]:
    """Return the ids of the sandboxes of which there is anything, and when the first of it was made."""
    filters = names.of_installation(instance_id)
    query = {"all": True, "filters": filters}
    found = [
        (one.get("Labels") or {}, datetime.fromtimestamp(one["Created"], UTC))
        for one in await engine.ask("GET", "containers/json", params=query)
    ]
    networks = await engine.ask("GET", "networks", params={"filters": filters})
    found += [(one.get("Labels") or {}, to_time(one["Created"])) for one in networks]
    volumes = await engine.ask("GET", "volumes", params={"filters": filters})
    found += [
        (one.get("Labels") or {}, to_time(one["CreatedAt"])) for one in volumes.get("Volumes") or []
    ]
    first: dict[str, datetime] = {}
    for labels, made in found:
        sandbox_id = labels.get(names.SANDBOX, "")
        if names.is_own(labels, instance_id, sandbox_id):
            first[sandbox_id] = min(made, first.get(sandbox_id, made))
    return first


async def left_on(engine: Engine, instance_id: str) -> list[str]:
    """Name what says an installation's id, among all that the engine has."""
    everything = {
        "container": await engine.ask("GET", "containers/json", params={"all": True}),
        "network": await engine.ask("GET", "networks"),
        "volume": (await engine.ask("GET", "volumes")).get("Volumes") or [],
        "image": await engine.ask("GET", "images/json"),
    }
    return [
        f"{kind} {one.get('Name') or one.get('Names') or one['Id']}"
        for kind, listed in everything.items()
        for one in listed
        if instance_id in str(one)
    ]
