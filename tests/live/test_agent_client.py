"""The client against the real agent server: the same checks as on the fake one, and more."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from agentsvc.agentserver.client import AgentClient
from agentsvc.base.errors import AgentRefused, AgentUnavailable
from agentsvc.base.values import Secret, new_id, new_key
from agentsvc.testing.llm import ScriptedModel
from tests.agent_checks import CHECKS, SCRIPTS, Rig
from tests.live.client import PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


class Running(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    key: Secret
    path: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Start one real agent server for the module."""
    path = tmp_path_factory.mktemp("a")
    port, key = free_port(), new_key()
    for name in ("home", "t", "work"):
        (path / name).mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(path / "home"),
        "TMPDIR": str(path / "t"),
        "TMUX_TMPDIR": str(path / "t"),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LOG_RICH_TRACEBACKS": "false",
        "OH_PRELOAD_TOOLS": "false",
        "OH_ENABLE_VSCODE": "false",
        "OH_SESSION_API_KEYS_0": key.reveal(),
        "OH_CONVERSATIONS_PATH": str(path / "conversations"),
        "OH_BASH_EVENTS_DIR": str(path / "bash"),
    }
    command = [sys.executable, "-m", "openhands.agent_server"]
    # It keeps to itself what would stay in /tmp.
    command += ["--import-modules", "agentsvc.guest"]
    with (path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=path,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield Running(url=f"http://127.0.0.1:{port}", key=key, path=path)
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
async def client() -> AsyncIterator[AgentClient]:
    client = AgentClient()
    await client.open()
    yield client
    await client.close()


@pytest.fixture
async def rig(running: Running, client: AgentClient) -> AsyncIterator[Rig]:
    server = client.at(running.url, running.key)
    # The first test waits for it to be loaded.
    await server.wait_ready(PATIENCE)
    # What another test, or another try, has written is in another directory.
    path = running.path / "work" / new_id()
    path.mkdir()
    async with ScriptedModel(scripts=SCRIPTS) as model:
        yield Rig(
            server,
            model_url=model.url,
            model_key=model.key.reveal(),
            path=str(path),
        )


@pytest.mark.parametrize("check", CHECKS)
async def test_the_real_agent_server_does_this(rig: Rig, check: str) -> None:
    await CHECKS[check](rig)


async def test_the_demo_script_works_in_a_real_sandbox(rig: Rig) -> None:
    conversation_id = await rig.start("Write a program that says hello")
    assert (await rig.wait(conversation_id)).execution_status == "finished"
    written = await rig.server.download(f"{rig.path}/hello.py")
    assert b"Hello, world!" in written
    outputs = [
        event["observation"]["content"][0]["text"]
        for event in await rig.events(conversation_id)
        if event["kind"] == "ObservationEvent"
    ]
    assert outputs[2] == "Hello, world!"


async def test_a_command_has_both_outputs_and_its_exit_code(rig: Rig) -> None:
    result = await rig.server.run_command("echo out; echo err >&2; exit 3", time_limit=60)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.timed_out


async def test_a_command_is_stopped_at_its_time_limit(rig: Rig) -> None:
    result = await rig.server.run_command("echo begun; sleep 60", time_limit=5)
    assert result.timed_out
    assert result.stdout == "begun\n"


async def test_a_command_runs_where_it_is_told(rig: Rig) -> None:
    result = await rig.server.run_command("pwd", cwd=rig.path, time_limit=60)
    assert result.stdout.strip() == rig.path
    result = await rig.server.run_command("pwd", cwd="/nowhere", time_limit=60)
    assert result.exit_code == -1
    assert "No such file" in result.stderr


async def test_a_long_output_keeps_its_end(rig: Rig) -> None:
    command = "head -c 3000000 /dev/zero | tr '\\0' x; echo END"
    result = await rig.server.run_command(command, time_limit=60)
    assert result.truncated
    assert result.stdout.endswith("xEND\n")


async def test_a_command_does_not_see_the_session_key(rig: Rig, running: Running) -> None:
    result = await rig.server.run_command("env", time_limit=60)
    assert running.key.reveal() not in result.stdout


async def test_skills_and_hooks_of_a_project_are_found(rig: Rig) -> None:
    project = f"{rig.path}/project"
    await rig.server.upload(f"{project}/AGENTS.md", b"Be kind.")
    hooks = {"stop": [{"matcher": "*", "hooks": [{"type": "command", "command": "true"}]}]}
    assert await rig.server.load_hooks(project) is None
    await rig.server.upload(f"{project}/.openhands/hooks.json", msgspec.json.encode(hooks))
    skills = await rig.server.load_skills(project)
    assert [skill["content"] for skill in skills] == ["Be kind."]
    found = await rig.server.load_hooks(project)
    assert found is not None
    assert found["stop"][0]["hooks"][0]["command"] == "true"


async def test_the_server_of_another_sandbox_is_noticed(
    rig: Rig, running: Running, client: AgentClient
) -> None:
    assert await rig.server.is_alive()
    with pytest.raises(AgentRefused, match="another server"):
        await client.at(running.url, Secret("wrong")).wait_ready(5)


async def test_an_unknown_tool_is_refused_and_the_server_goes_on(rig: Rig) -> None:
    body = rig.body("go")
    body["agent"] = {**body["agent"], "tools": [{"name": "no_such_tool"}]}
    with pytest.raises(AgentRefused, match="no_such_tool"):
        await rig.server.start_conversation(body)
    assert await rig.start("[script:say] go")


async def test_a_port_where_nothing_listens_is_unavailable(client: AgentClient) -> None:
    server = client.at(f"http://127.0.0.1:{free_port()}", Secret("k"))
    with pytest.raises(AgentUnavailable, match=r"within 0\.3 seconds"):
        await server.wait_ready(0.3)
