"""A volume with the agent server, mounted into containers whose image has none.

It is filled once per agent image, by a container whose exit code 0 means that it is complete.
Volume and container belong to the engine, as images do: installations that share the engine share
them.
"""

import asyncio
from pathlib import Path
from typing import Final

from agentsvc.base import BackendUnavailable, OrderRejected
from agentsvc.plugin import StillFetching

from .engine import Engine
from .failures import CONFLICT, NOT_FOUND, one_line
from .plan import TOOLS, ImageInfo, Json

_PYTHON: Final = f"{TOOLS}/bin/python"
_TARGET: Final = "/tools"
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.25
_REMEDY: Final = "use a sandbox spec of the image that `agentsvc images build` makes"


def name_of(image: ImageInfo) -> str:
    """Return the name of the volume, and of the container that fills it."""
    return f"agentsvc-tools-{image.id.removeprefix('sha256:')[:24]}"


async def ensure(engine: Engine, image: ImageInfo) -> str:
    """Return the name of the volume with an image's agent server, filling it if necessary.

    Raises StillFetching while it is being filled, OrderRejected if that is impossible.
    """
    name = name_of(image)
    for _ in range(_TRIES):
        found = await engine.get(f"containers/{name}/json")
        state = (found or {}).get("State") or {}
        if found is None:
            await engine.ask(
                "POST",
                "containers/create",
                params={"name": name},
                body=_body(image, name),
                expect=(CONFLICT,),
            )
        elif state.get("Status") in ("created", "configured"):
            await _start(engine, name)
        elif not state.get("Running") and state.get("Status") != "running":
            if not state.get("ExitCode"):
                return name
            await _discard(engine, name)
        else:
            await asyncio.sleep(_PAUSE_SECONDS)
    raise StillFetching("The agent server is being copied for other images")


async def _start(engine: Engine, name: str) -> None:
    try:
        await engine.ask("POST", f"containers/{name}/start")
    except OrderRejected as exc:
        for kind in ("containers", "volumes"):
            await engine.remove(f"{kind}/{name}")
        text = "The agent server of the spec's image cannot be copied for other images"
        raise OrderRejected(f"{text}: {_REMEDY}", detail=exc.detail) from exc


async def _discard(engine: Engine, name: str) -> None:
    """Remove the container of a failed copy, so that it is repeated; raises BackendUnavailable."""
    query = {"stderr": True, "tail": 5}
    gone = (NOT_FOUND, CONFLICT)
    async with engine.stream("GET", f"containers/{name}/logs", params=query, expect=gone) as logs:
        text = b"" if logs is None else await logs.read()
    await engine.remove(f"containers/{name}")
    raise BackendUnavailable(
        "The agent server could not be copied for other images",
        detail=one_line(text.decode(errors="replace")),
    )


def _body(image: ImageInfo, name: str) -> Json:
    program = Path(__file__).with_name("tools_program.py").read_text(encoding="utf-8")
    return {
        "Image": image.id,
        "Entrypoint": [_PYTHON, "-I", "-c", program],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Mounts": [{"Type": "volume", "Source": name, "Target": _TARGET}],
        },
    }
