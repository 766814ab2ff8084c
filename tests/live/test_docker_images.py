"""Sandboxes in images that are chosen or built for them, on a real engine."""

import asyncio
import contextlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from agentsvc.agentserver import AgentClient
from agentsvc.base.errors import OrderRejected
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin import ImageBuild, Port, StillFetching
from agentsvc.plugin.backend import Order, Phase
from agentsvc.testing import KitOptions
from agentsvc.testing.rig import Rig, open_rig
from tests.live.containers import Engine
from tests.live.engines import BASE
from tests.live.test_docker_backend import KIND
from tests.plugin_loading import part

if TYPE_CHECKING:
    from environments import devcontainer, features
else:
    devcontainer, features = part("environments.devcontainer"), part("environments.features")

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

KEY = Secret("of-the-agent-server")
NO_PYTHON = "RUN rm -rf /usr/bin/python3* /usr/lib/python3* /usr/local/bin/python3* /usr/bin/git\n"
INSTALL = '#!/bin/sh\necho "$GREETING $_REMOTE_USER" >/greeting\n'


@contextlib.asynccontextmanager
async def rig_on(engine: Engine) -> AsyncIterator[Rig]:
    settings = KIND.Config(host=engine.url, guard_host=False)
    options = KitOptions(beacon_host="", time_limit=240)
    async with open_rig(KIND, settings, options) as rig:
        try:
            yield rig
        finally:
            for [*_, handle] in rig.saved.values():
                await rig.backend.delete(handle)
            await rig.until(lambda: no_images(rig, engine))


def order_in(base: str, image: str) -> Order:
    """Return an order for the agent server of one image in another."""
    env = {"OH_CONVERSATIONS_PATH": "/workspace/conversations", "OH_PRELOAD_TOOLS": "false"}
    return Order(
        sandbox_id=new_id(),
        image=image,
        base=base,
        working_dir="project",
        ports=(Port(name="agent", number=8000),),
        env={**env, "OH_ENABLE_VSCODE": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        secret_env={"OH_SESSION_API_KEYS_0": KEY},
    )


async def patiently[T](call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call gives that says it needs more time."""
    while True:
        try:
            return await call()
        except StillFetching:
            await asyncio.sleep(0.1)


async def built(rig: Rig, build: ImageBuild) -> tuple[str, str]:
    """Have an image be built; return its id and its name."""
    image_id = new_id()
    return image_id, await patiently(lambda: rig.backend.build_image(image_id, build))


def context_of(directory: Path, files: dict[str, str]) -> Path:
    path = directory / "context.tar"
    with tarfile.open(path, "w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


async def images_of(rig: Rig, engine: Engine) -> list[str]:
    """Name the images that the engine itself has of an installation, also what is half built."""
    query = quote(json.dumps({"label": [f"agentsvc.installation={rig.instance_id}"]}))
    found = await asyncio.to_thread(engine.ask, f"/images/json?filters={query}")
    return [one["Id"] for one in found]


async def no_images(rig: Rig, engine: Engine) -> bool:
    """Remove what a look finds, and say whether the engine has nothing any more.

    It may take a moment until it has heard that a build was broken off.
    """
    for image_id in await rig.backend.images():
        await rig.backend.remove_image(image_id)
    return not await images_of(rig, engine)


async def test_the_agent_server_runs_in_what_was_built_of_a_dockerfile_and_a_feature(
    engine: Engine, tmp_path: Path
) -> None:
    place = tmp_path / "features" / "greeter"
    place.mkdir(parents=True)
    about = {"options": {"greeting": {"default": "hello"}}, "containerEnv": {"MOOD": "fine"}}
    (place / "devcontainer-feature.json").write_text(json.dumps(about))
    (place / "install.sh").write_text(INSTALL)
    file = {"features": {"ghcr.io/acme/features/greeter:1": {"greeting": "it's $HOME"}}}
    says, _ = devcontainer.parse(json.dumps(file).encode(), "x")
    found = features.find_features(str(tmp_path / "features"), says)
    context = context_of(tmp_path, {"here/note": "from the repository"})
    features.add_features(context, found)
    dockerfile = (
        f"ARG BASE\nFROM ${{BASE}} \\\n  AS tools\nCOPY here/note /note\n{NO_PYTHON}"
        "RUN useradd --uid 1000 --create-home coder\nFROM tools AS later\nRUN rm /note\n"
    )
    build = ImageBuild(
        context=context,
        dockerfile=features.with_features(dockerfile, "tools", found),
        args={"BASE": BASE},
        time_limit=120,
    )
    async with rig_on(engine) as rig:
        image_id, name = await built(rig, build)
        assert name.endswith(f":{image_id}")
        order = order_in(name, engine.image)
        handle = await patiently(lambda: rig.create(order))
        [end] = (await rig.wait(handle, Phase.RUNNING)).endpoints
        client = AgentClient()
        await client.open()
        try:
            agent = client.at(end.url, KEY)
            await agent.wait_ready(60)
            said = await agent.run_command(
                "cat /note; echo; cat /greeting; echo $MOOD; id -u; command -v python3 || echo none;"
                " cd && pwd && git init -q site && cd site && git -c user.name=a -c user.email=b"
                " commit -q --allow-empty -m one && git clone -q . ../copy && git -C ../copy log --format=%s;"
                " touch /opt/agent-server/x 2>&1 | tail -c 22",
                time_limit=60,
            )
        finally:
            await client.close()
        assert said.stdout.splitlines() == [
            *("from the repository", "it's $HOME coder", "fine", "1000", "none"),
            *("/workspace/.home", "one", "Read-only file system"),
        ]
        described = await asyncio.to_thread(
            engine.ask, f"/containers/oh-agent-server-{order.sandbox_id}/json"
        )
        assert described["Image"] in await images_of(rig, engine)

        # It stays as long as somebody has it, and another installation knows nothing of it.
        other = await rig.open(new_id())
        assert await other.images() == []
        await other.remove_image(image_id)
        await rig.backend.remove_image(image_id)
        assert await rig.backend.images() == [image_id]
        await rig.backend.delete(handle)
        await rig.backend.remove_image(image_id)
        assert await rig.backend.images() == await images_of(rig, engine) == []


async def test_what_a_server_that_died_was_building_is_found_and_removed(
    engine: Engine, tmp_path: Path
) -> None:
    context = context_of(tmp_path, {})
    dockerfile = f"FROM {BASE}\nRUN echo first\nRUN touch /at-it; sleep 600\n"
    build = ImageBuild(context=context, dockerfile=dockerfile, time_limit=120)
    async with rig_on(engine) as rig:
        doomed = await rig.open()
        with pytest.raises(StillFetching):
            await doomed.build_image(new_id(), build)
        # All that an engine hears of a server that is killed is that its connections end.
        await rig.close(doomed)

        await rig.until(lambda: no_images(rig, engine))
        containers = await asyncio.to_thread(engine.ask, "/containers/json")
        assert not [one for one in containers if "at-it" in one["Command"]]


@pytest.mark.parametrize(
    ("dockerfile", "seconds", "reason"),
    [
        ("RUN no from", 60, "The image cannot be built"),
        (f"FROM {BASE}\nRUN echo why; exit 3\n", 60, "why"),
        (f"FROM {BASE}\nRUN sleep 600\n", 3, "took longer than 3 s"),
        ("FROM localhost/none-such:1\n", 60, "The image cannot be built"),
    ],
)
async def test_what_cannot_be_built_says_why(
    engine: Engine, tmp_path: Path, dockerfile: str, seconds: float, reason: str
) -> None:
    build = ImageBuild(context=context_of(tmp_path, {}), dockerfile=dockerfile, time_limit=seconds)
    async with rig_on(engine) as rig:
        with pytest.raises(OrderRejected) as refused:
            await built(rig, build)
        assert reason in f"{refused.value.message} {refused.value.detail}"


async def test_an_image_without_the_agent_server_cannot_bring_it_into_others(
    engine: Engine,
) -> None:
    async with rig_on(engine) as rig:
        with pytest.raises(OrderRejected, match="agentsvc images build"):
            await patiently(lambda: rig.create(order_in(BASE, BASE)))
