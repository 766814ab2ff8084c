"""Prepared environments in images of their own, on a real engine."""

import json
from pathlib import Path

import pytest

from agentsvc.testing.git import GitServer
from tests.live.containers import EVERYWHERE, Engine
from tests.live.engines import BASE
from tests.live.events import outputs
from tests.live.installation import Installation, eventually
from tests.live.scripts import run
from tests.live.test_docker_conversations import (
    START_SECONDS,
    Start,
    container_of,
)
from tests.live.test_environments import PATH, wait_for
from tests.live.test_repositories import provider

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(500),
    pytest.mark.asyncio(loop_scope="session"),
]

FILE = {
    "build": {"dockerfile": "Dockerfile"},
    "features": {"greeter": {"greeting": "welcome"}},
    "remoteEnv": {"LEVEL": "two words"},
    "postCreateCommand": "cat /greeting /copied; echo $LEVEL",
}


def built_of(engine: Engine, own: Installation) -> list[str]:
    """Name the images that the engine has of a server."""
    found = engine.ask("/images/json")
    return [one["Id"] for one in found if own.instance_id in str(one["Labels"])]


async def test_what_a_repository_wants_built_is_built_and_goes_with_its_environment(
    start: Start, engine: Engine, git_server: GitServer, tmp_path: Path
) -> None:
    place = tmp_path / "greeter"
    place.mkdir()
    (place / "devcontainer-feature.json").write_text("{}")
    (place / "install.sh").write_text('#!/bin/sh\necho "$GREETING" >/greeting\n')
    told = {"build_images": True, "features_dir": str(tmp_path)}
    own = await start(
        AGENTSVC_SERVER__HOST=EVERYWHERE,
        **{
            f"AGENTSVC_EXTENSIONS__ENVIRONMENTS__{name.upper()}": json.dumps(value).strip('"')
            for name, value in told.items()
        },
    )
    client = own.client()
    await client.save_settings(**provider(git_server))
    files = {
        ".devcontainer/devcontainer.json": json.dumps(FILE),
        ".devcontainer/Dockerfile": f"FROM {BASE}\nCOPY note /copied\n",
        ".devcontainer/note": "copied\n",
    }
    await git_server.add_repository("acme/built", files)
    order = {"name": "Built", "repository": "acme/built", "provider": "gitlab"}
    made = (await client.post(PATH, json=order)).json()
    ready = await wait_for(client, made, "ready")
    assert (ready["log"], ready["detail"]) == ("welcome\ncopied\ntwo words", None)
    assert built_of(engine, own) != []
    assert (await client.delete(f"{PATH}/{made['id']}")).status == 200
    await eventually(lambda: not built_of(engine, own), "the image is gone", time_limit=90)


async def test_a_conversation_runs_in_the_image_of_its_environment(
    start: Start, engine: Engine
) -> None:
    own = await start(AGENTSVC_SERVER__HOST=EVERYWHERE)
    client = own.client()
    order = {"name": "Named", "image": BASE, "setup_script": "echo made >made; git --version"}
    ready = await wait_for(client, (await client.post(PATH, json=order)).json(), "ready")
    assert ready["log"].startswith("git version")
    begun = await client.start_conversation(
        run("cat made; ls /usr/local/bin/openhands-agent-server 2>&1 | tail -c 26"),
        environment_id=ready["id"],
        time_limit=START_SECONDS,
    )
    await client.wait_for_execution(begun, "finished")
    assert outputs(await client.events(begun)) == ["made\nNo such file or directory"]
    assert container_of(engine, own)
    assert (await client.delete(f"/api/v1/app-conversations/{begun}")).status == 200
    assert (await client.delete(f"{PATH}/{ready['id']}")).status == 200
