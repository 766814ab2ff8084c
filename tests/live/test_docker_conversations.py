"""Whole conversations in containers of our own image, through a real server on a real engine."""

import asyncio
import io
import itertools
import json
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from agentsvc.testing.llm import ScriptedModel
from tests.git_server import GitServer
from tests.live import engines
from tests.live.client import LiveClient
from tests.live.containers import EVERYWHERE, Engine
from tests.live.engines import BASE
from tests.live.events import outputs, said
from tests.live.installation import Installation, eventually, secret
from tests.live.scripts import SCRIPTS, run
from tests.live.test_environments import PATH as ENVIRONMENTS
from tests.live.test_environments import wait_for
from tests.live.test_repositories import provider

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.asyncio(loop_scope="session"),
]

START_SECONDS = 240.0
GO = "go"
"""A file in the workspace that commands wait for."""
_LOG_LINES = 60
_DEVCONTAINER = {
    "build": {"dockerfile": "Dockerfile"},
    "features": {"greeter": {"greeting": "welcome"}},
    "remoteEnv": {"LEVEL": "two words"},
    "postCreateCommand": "cat /greeting /copied; echo $LEVEL",
}

type Start = Callable[..., Awaitable[Installation]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def near_model(engine: Engine) -> AsyncIterator[ScriptedModel]:
    """Return a model where containers find this machine."""
    async with ScriptedModel(scripts=SCRIPTS, key=secret("model"), host=engine.address) as model:
        yield model


@pytest_asyncio.fixture(loop_scope="session")
async def start(
    tmp_path_factory: pytest.TempPathFactory, engine: Engine, near_model: ScriptedModel
) -> AsyncIterator[Start]:
    """Return a function that starts a server whose sandboxes are containers."""
    made: list[Installation] = []

    async def make(**environment: str) -> Installation:
        told = {
            "AGENTSVC_BACKENDS__DOCKER__HOST": engine.url,
            # The model is a port of this machine.
            "AGENTSVC_SANDBOXES__MODEL_HOSTS": json.dumps([urlsplit(near_model.url).netloc]),
            "AGENTSVC_BACKENDS__DOCKER__GUARD_HOST": "false",
            "AGENTSVC_SANDBOXES__DEFAULT_BACKEND": "docker",
            "AGENTSVC_SANDBOXES__DEFAULT_SPEC": engine.image,
            "AGENTSVC_SANDBOXES__SWEEP_SECONDS": "1",
            "AGENTSVC_SANDBOXES__START_SECONDS": str(START_SECONDS),
        }
        directory = tmp_path_factory.mktemp("containers")
        installation = Installation(directory, near_model, told | environment)
        made.append(installation)
        await installation.start()
        await installation.client().save_settings()
        return installation

    yield make
    for installation in made:
        lines = [line for line in installation.log.splitlines() if " method=GET " not in line]
        sys.stderr.write("\n".join(["--- the server's log", *lines[-_LOG_LINES:], ""]))
        await installation.close()
        left = await engine.left(installation.instance_id)
        assert left == [], f"the engine still has {left}"


async def sandbox_of(client: LiveClient, conversation: dict[str, Any]) -> dict[str, Any]:
    found = await client.sandbox(conversation["sandbox_id"])
    assert found is not None
    return found


async def until_sandbox(
    client: LiveClient, conversation: dict[str, Any], is_enough: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the sandbox of a conversation as soon as it is as wished."""
    async with asyncio.timeout(client.patience):
        for pause in itertools.repeat(0.1):
            found = await sandbox_of(client, conversation)
            if is_enough(found):
                return found
            await asyncio.sleep(pause)
    raise AssertionError


async def run_to_the_end(own: Installation, client: LiveClient, engine: Engine) -> str:
    """Have a whole conversation in a container of its own, and return its id."""
    conversation_id = await client.start_conversation(
        run("echo $((6 * 7)) > answer", "cat answer", "id -u; ls /var/run/docker.sock"),
        time_limit=START_SECONDS,
    )
    seen = await client.wait_for_execution(conversation_id, "finished")
    events = await client.events(conversation_id)
    first, second, third = outputs(events)
    assert (first, second) == ("", "42")
    assert third.startswith("1000\n")
    assert "No such file or directory" in third
    assert len({event["id"] for event in events}) == len(events)
    path = f"/api/v1/app-conversations/{conversation_id}/file"
    assert (await client.get(f"{path}?file_path=/workspace/project/answer")).json() == "42\n"

    sandbox = await sandbox_of(client, seen)
    assert (sandbox["status"], sandbox["isolation"]) == ("RUNNING", "container")
    container = await asyncio.to_thread(container_of, engine, own)
    described = await asyncio.to_thread(engine.ask, f"/containers/{container}/json")
    assert seen["session_api_key"] not in str(described)
    return conversation_id


def container_of(engine: Engine, own: Installation) -> str:
    """Return the name of the one container that a server has."""
    [container] = [name for name in engine.has(own.instance_id) if "container" in name]
    return container.removeprefix("container /")


def runs(engine: Engine, container: str) -> bool:
    """Say what the engine itself says of a container."""
    return bool(engine.ask(f"/containers/{container}/json")["State"]["Running"])


def let_go(engine: Engine, container: str) -> None:
    """Let a command go on that waits for a file, by the engine, without the server."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(GO))
    packed.seek(0)
    path = f"/containers/{container}/archive?path=/workspace"
    assert engines.ask(engine.socket, "PUT", path, body=packed)[0] == 200


async def test_a_conversation_goes_on_after_its_server_was_killed(
    start: Start, engine: Engine
) -> None:
    """What went on meanwhile in a container, which tells its server, is found in the end."""
    own = await start(AGENTSVC_SERVER__HOST=EVERYWHERE)
    client = own.client()
    conversation_id = await run_to_the_end(own, client, engine)
    told = len(outputs(await client.events(conversation_id)))
    waiting = f"until [ -e /workspace/{GO} ]; do sleep 0.1; done; echo during"
    await client.send(conversation_id, run("echo before", waiting, "echo after"))
    await client.until(conversation_id, lambda events: len(outputs(events)) > told)
    before = await client.wait_for_execution(conversation_id, "running")
    had = await engine.left(own.instance_id)
    container = await asyncio.to_thread(container_of, engine, own)
    await own.kill()
    await asyncio.to_thread(let_go, engine, container)
    await own.start()
    client = own.client()
    ended = await client.wait_for_execution(conversation_id, "finished")
    events = await client.events(conversation_id)
    assert outputs(events)[told:] == ["before", "during", "after"]
    assert ended["session_api_key"] == before["session_api_key"]
    assert await engine.left(own.instance_id) == had

    rules = await client.put("/api/v1/sandbox-rules", json={"stop_after_seconds": 1})
    assert rules.status == 200, rules.text
    await until_sandbox(client, ended, lambda one: one["paused_as"] == "stopped")
    assert not await asyncio.to_thread(runs, engine, container)


async def test_a_frozen_conversation_goes_on_where_it_was_and_is_deleted_whole(
    start: Start, engine: Engine
) -> None:
    """A server on loopback, which hears nothing of its container, asks it for what happened."""
    own = await start(AGENTSVC_SERVER__HOST="127.0.0.1")
    client = own.client()
    conversation_id = await run_to_the_end(own, client, engine)
    told = len(outputs(await client.events(conversation_id)))
    waiting = f"echo $$ >>begun; until [ -e /workspace/{GO} ]; do sleep 0.1; done"
    await client.send(conversation_id, run(f"{waiting}; cat begun; echo $$"))
    begun = f"/api/v1/app-conversations/{conversation_id}/file?file_path=/workspace/project/begun"
    async with asyncio.timeout(client.patience):
        for pause in itertools.repeat(0.1):
            if (await client.get(begun)).json():
                break
            await asyncio.sleep(pause)
    seen = await client.wait_for_execution(conversation_id, "running")
    path = f"/api/v1/sandboxes/{seen['sandbox_id']}"
    for _ in range(2):
        assert (await client.post(f"{path}/pause")).json() == {"success": True}
    paused = await sandbox_of(client, seen)
    assert (paused["status"], paused["paused_as"]) == ("PAUSED", "frozen")
    assert (await client.post(f"{path}/resume")).json() == {"success": True}
    container = await asyncio.to_thread(container_of, engine, own)
    await asyncio.to_thread(let_go, engine, container)
    await client.wait_for_execution(conversation_id, "finished")
    [said] = outputs(await client.events(conversation_id))[told:]
    begun_as, ended_as = said.split()
    assert begun_as == ended_as

    used = (await until_sandbox(client, seen, lambda one: bool(one["usage"])))["usage"]
    assert min(used[name] for name in ("cpu_seconds", "memory_bytes", "processes")) > 0
    for verb in ("pause", "stop", "stop"):
        assert (await client.post(f"{path}/{verb}")).json() == {"success": True}
    await until_sandbox(client, seen, lambda one: one["paused_as"] == "stopped")
    assert not await asyncio.to_thread(runs, engine, container)
    await until_sandbox(client, seen, lambda one: one["usage"] is None)

    answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
    assert answer.status == 200, answer.text
    await eventually(lambda: not engine.has(own.instance_id), "nothing is left on the engine")


async def test_a_sandbox_that_may_go_nowhere_reaches_its_model_and_nothing_else(
    start: Start, engine: Engine, near_model: ScriptedModel
) -> None:
    own = await start(
        AGENTSVC_SERVER__HOST=EVERYWHERE,
        AGENTSVC_SPECS__SHUT__IMAGE=engine.image,
        AGENTSVC_SPECS__SHUT__NETWORK="none",
        AGENTSVC_SPECS__SHUT__PORTS='[{"name": "agent", "number": 8000}]',
        AGENTSVC_SANDBOXES__DEFAULT_SPEC="shut",
    )
    client = own.client()
    port = urlsplit(near_model.url).port
    attempts = [
        f"python3 -c 'import socket; socket.create_connection((\"{host}\", {port}), 2)' 2>&1"
        f" | tail -n 1 | cut -d : -f 1"
        for host in (engine.address, "192.0.2.1")
    ]
    conversation_id = await client.start_conversation(
        run("echo shut", *attempts), time_limit=START_SECONDS
    )
    seen = await client.wait_for_execution(conversation_id, "finished")
    said, *refused = outputs(await client.events(conversation_id))
    assert said == "shut"
    assert set(refused) <= {"OSError", "TimeoutError"}
    assert (await sandbox_of(client, seen))["status"] == "RUNNING"


async def test_containers_begin_with_what_was_prepared(start: Start, engine: Engine) -> None:
    own = await start()
    client = own.client()
    await client.post("/api/v1/secrets", json={"name": "TOKEN", "value": "s3cret-of-the-setup"})
    script = "head -c 400M /dev/zero >deps; ln deps same; echo cached >~/cache; echo done $TOKEN"
    order = {"name": "Big", "setup_script": script, "secrets": ["TOKEN"]}
    answer = await client.post(ENVIRONMENTS, json=order)
    assert answer.status == 201, answer.text

    def half_made() -> list[str]:
        return [one for one in engine.has(own.instance_id) if "agentsvc-layer-" in one]

    await eventually(half_made, "the files are being kept", time_limit=START_SECONDS)
    await own.kill()
    assert half_made() != []
    await own.start()
    client = own.client()
    ready = await wait_for(client, answer.json(), "ready")
    assert ready["log"] == "done ***"
    assert 4 * 10**8 < ready["size_bytes"] < 5 * 10**8
    await eventually(lambda: len(engine.has(own.instance_id)) == 1, "only the layer is left")
    assert engine.has(own.instance_id)[0].startswith("image ")

    look = "stat -c %s-%h deps; cat ~/cache; grep -rl s3cret-of-the-setu[p] /workspace ~"
    begun = await client.start_conversation(
        run(look, "rm deps && echo own >same"),
        environment_id=ready["id"],
        time_limit=START_SECONDS,
    )
    first = await client.wait_for_execution(begun, "finished")
    assert outputs(await client.events(begun))[0].split() == [f"{400 * 2**20}-2", "cached"]
    # It stays for whoever has begun with it, also when their sandbox is started anew.
    assert (await client.delete(f"{ENVIRONMENTS}/{ready['id']}")).status == 200
    container = f"oh-agent-server-{first['sandbox_id']}"
    assert engines.ask(engine.socket, "POST", f"/containers/{container}/kill")[0] == 204

    await until_sandbox(client, first, lambda found: found["status"] == "ERROR")
    answer = await client.post(f"/api/v1/sandboxes/{first['sandbox_id']}/resume")
    assert answer.status == 200, answer.text
    await client.wait_for_sandbox(first["sandbox_id"], "RUNNING")

    await client.send(begun, run("cat same ~/cache"))
    seen = await client.until(begun, lambda events: "own" in "".join(outputs(events)[-1:]))
    assert outputs(seen)[-1].split() == ["own", "cached"]

    await client.delete(f"/api/v1/sandboxes/{first['sandbox_id']}")
    await eventually(
        lambda: engine.has(own.instance_id) == [], "its image goes with the last of it"
    )


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
        ".devcontainer/devcontainer.json": json.dumps(_DEVCONTAINER),
        ".devcontainer/Dockerfile": f"FROM {BASE}\nCOPY note /copied\n",
        ".devcontainer/note": "copied\n",
    }
    await git_server.add_repository("acme/built", files)
    order = {"name": "Built", "repository": "acme/built", "provider": "gitlab"}
    made = (await client.post(ENVIRONMENTS, json=order)).json()
    ready = await wait_for(client, made, "ready")
    assert (ready["log"], ready["detail"]) == ("welcome\ncopied\ntwo words", None)
    assert built_of(engine, own) != []
    assert (await client.delete(f"{ENVIRONMENTS}/{made['id']}")).status == 200
    await eventually(lambda: not engine.has(own.instance_id), "nothing is left", time_limit=120)


async def test_a_conversation_runs_in_the_image_of_its_environment(
    start: Start, engine: Engine
) -> None:
    own = await start(AGENTSVC_SERVER__HOST=EVERYWHERE)
    client = own.client()
    order = {"name": "Named", "image": BASE, "setup_script": "echo made >made; git --version"}
    ready = await wait_for(client, (await client.post(ENVIRONMENTS, json=order)).json(), "ready")
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
    assert (await client.delete(f"{ENVIRONMENTS}/{ready['id']}")).status == 200
    await eventually(lambda: not engine.has(own.instance_id), "nothing is left", time_limit=120)


async def test_files_in_a_container_go_back_also_where_the_server_is_killed(start: Start) -> None:
    own = await start()
    client = own.client()
    order = {"name": "Deep", "setup_script": "mkdir -p deep/er; echo kept >deep/er/file"}
    made = (await client.post(ENVIRONMENTS, json=order)).json()
    environment = await wait_for(client, made, "ready")
    conversation_id = await client.start_conversation(
        run("echo good >notes", "echo x >~/own"),
        environment_id=environment["id"],
        time_limit=START_SECONDS,
    )
    seen = await client.wait_for_execution(conversation_id, "finished")
    spoil = "echo spoilt >notes; rm -rf deep ~/own; mkdir new; sleep 1000 &"
    await client.send(conversation_id, run(spoil, "rm -rf /run/agentsvc/checkpoints; id -G"))
    await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id))[-1].split()[-1] == "1000"
    path = f"/api/v1/app-conversations/{conversation_id}"
    kept = (await client.get(f"{path}/checkpoints")).json()["items"]
    assert len(kept) == 2

    answer = await client.post(f"{path}/rollback", json={"checkpoint_id": kept[0]["id"]})
    assert answer.status == 200, answer.text
    await own.kill()
    await own.restart()
    client = own.client()
    await client.post(f"/api/v1/sandboxes/{seen['sandbox_id']}/resume")
    await client.wait_for_sandbox(seen["sandbox_id"], "RUNNING")
    await client.send(conversation_id, run("ls; cat notes deep/er/file ~/own; pgrep -c sleep"))
    events = await client.until(
        conversation_id, lambda events: "good" in "".join(outputs(events)[-1:])
    )
    assert outputs(events)[-1].split() == ["deep", "notes", "good", "kept", "x", "0"]
    assert any("put back to what they were" in text for text in said(events, "user"))
    # What comes after is not undone by another start.
    await client.send(conversation_id, run("echo own >notes"))
    await client.wait_for_execution(conversation_id, "finished")
    await client.post(f"/api/v1/sandboxes/{seen['sandbox_id']}/stop")
    await client.wait_for_sandbox(seen["sandbox_id"], "PAUSED")
    await client.post(f"/api/v1/sandboxes/{seen['sandbox_id']}/resume")
    await client.wait_for_sandbox(seen["sandbox_id"], "RUNNING")
    await client.send(conversation_id, run("cat notes"))
    await client.until(conversation_id, lambda events: outputs(events)[-1].split() == ["own"])
    await client.delete(f"{ENVIRONMENTS}/{environment['id']}")


async def test_a_fork_of_a_container_has_its_files_also_where_the_server_is_killed(
    start: Start, engine: Engine
) -> None:
    own = await start()
    client = own.client()
    files = "mkdir deep && head -c 400M /dev/zero >deep/large && ln deep/large same"
    first_id = await client.start_conversation(
        run(files, "echo kept >~/own; sleep 1000 &"), time_limit=START_SECONDS
    )
    first = await client.wait_for_execution(first_id, "finished")
    path = f"/api/v1/app-conversations/{first_id}/fork"
    look = "stat -c %s-%h deep/large same; cat ~/own; rm same; pgrep -c sleep"
    message = {"role": "user", "content": [{"type": "text", "text": run(look)}]}
    task = (await client.post(path, json={"initial_message": message})).json()

    def made() -> list[str]:
        return [one for one in engine.has(own.instance_id) if one.startswith("container ")]

    await eventually(lambda: len(made()) == 2, "it is being copied")
    await own.kill()
    await own.restart()
    client = own.client()
    begun = await client.end_of_start(task["id"])
    assert begun["status"] == "READY", begun["detail"]
    second = await client.wait_for_execution(begun["app_conversation_id"], "finished")
    size = f"{400 * 2**20}-2"
    said_last = outputs(await client.events(second["id"]))[-1]
    assert said_last.split() == [size, size, "kept", "0"]
    assert second["session_api_key"] != first["session_api_key"]
    await client.send(first_id, run("stat -c %h same; pgrep -c sleep"))
    await client.until(first_id, lambda events: outputs(events)[-1].split() == ["2", "1"])
