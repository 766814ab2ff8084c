"""The published harness `OpenHands/benchmarks` as it is, in its remote mode, on a server of ours.

It is on no package index: TEST_BENCHMARKS names a git clone of it, which is copied and not changed.
Of its benchmarks this is Multi-SWE-bench, whose data set may be a file, and whose repositories are
where the image has them below /home: here the spec's command makes one. Its images are in a registry,
which it asks before it asks for a runtime; here something that says yes to every name stands for that.
"""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from process.specs import DEFAULT_SPEC

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE
from tests.live.clients.conftest import Record
from tests.live.clients.published import Client, takes_minutes
from tests.live.conftest import MakeInstallation
from tests.live.scripts import run
from tests.live.tls import make_certificates

CLONE = os.environ.get("TEST_BENCHMARKS", "")

pytestmark = [
    pytest.mark.live,
    takes_minutes,
    pytest.mark.skipif(
        not CLONE, reason="TEST_BENCHMARKS does not name a git clone of OpenHands/benchmarks"
    ),
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="session"),
]

INSTANCES = 32
"""Of which the harness works on 20 at once, whatever it is told."""
AT_ONCE = 8
HARNESS_SECONDS = 14 * PATIENCE
REPOSITORY = """(
mkdir ~/repository && cd ~/repository && git init --quiet && echo one >name.txt && git add -A
git -c user.name=a -c user.email=a@example.com commit --quiet -m base && git tag base
) && exec "$@"
"""


@contextlib.asynccontextmanager
async def registry(directory: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """Give the address of a stand-in for a registry of images, and what it is asked for."""
    asked: list[str] = []

    async def say_yes(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    app = web.Application()
    app.router.add_get("/v2/{name:.+}/manifests/{tag}", say_yes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_the_published_harness_works_on_many_instances_at_once(
    benchmarks: Client,
    make_installation: MakeInstallation,
    model: ScriptedModel,
    tmp_path: Path,
    record_property: Record,
) -> None:
    harness = tmp_path / "harness"
    await _git("clone", "--quiet", CLONE, str(harness))
    commit = await _git("-C", str(harness), "rev-parse", "HEAD")
    record_property("client", f"OpenHands/benchmarks {commit[:12]}")
    own = await make_installation(
        AGENTSVC_RUNTIME_API__ENABLED="true",
        AGENTSVC_RUNTIME_API__SPEC="prepared",
        AGENTSVC_RUNTIME_API__AT_ROOT="true",
        **_spec("PREPARED"),
        AGENTSVC_SANDBOXES__START_SECONDS=str(2 * PATIENCE),
        AGENTSVC_SANDBOXES__MAX_RUNNING=str(AT_ONCE),
        AGENTSVC_SANDBOXES__WHEN_FULL="queue",
    )
    _write_data_set(tmp_path / "instances")
    (tmp_path / "extensions/skills").mkdir(parents=True)
    llm = {"model": "openai/scripted", "base_url": model.url, "api_key": model.key.reveal()}
    (tmp_path / "llm.json").write_text(json.dumps(llm))
    authority = make_certificates(tmp_path)[0]
    async with registry(authority) as (address, asked):
        environment = {
            "PYTHONPATH": str(harness),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RUNTIME_API_URL": f"{own.url}/runtime",
            "RUNTIME_API_KEY": own.key.reveal(),
            "REMOTE_RUNTIME_STARTUP_TIMEOUT": str(HARNESS_SECONDS),
            "OPENHANDS_EVAL_AGENT_SERVER_IMAGE": f"{address}/eval-agent-server",
            "REQUESTS_CA_BUNDLE": str(authority / "ca.pem"),
            # Without it the SDK gets its public skills from elsewhere.
            "EXTENSIONS_PATH": str(tmp_path / "extensions"),
        }
        said = await benchmarks.call(
            *("env", f"--chdir={harness}"),
            *(f"{name}={value}" for name, value in environment.items()),
            *(*benchmarks.command, "-m", "benchmarks.multiswebench.run_infer"),
            *(str(tmp_path / "llm.json"), "--workspace", "remote", "--lang", "python"),
            *("--dataset", str(tmp_path / "instances"), "--split", "test"),
            *("--num-workers", str(INSTANCES), "--output-dir", str(tmp_path / "output")),
            *("--max-iterations", "20", "--max-retries", "0", "--n-critic-runs", "1"),
            *("--condenser-max-size", "240", "--condenser-keep-first", "2"),
            time_limit=HARNESS_SECONDS,
        )
    output = Path(json.loads(said.splitlines()[-1])["output_json"])
    failed = _read(output.with_name("output_errors.jsonl")).values()
    assert [one["error"] for one in failed] == []
    found = _read(output)
    assert sorted(found) == sorted(map(_name, range(INSTANCES)))
    for number in range(INSTANCES):
        _check(found[_name(number)], number)
    assert len(asked) == INSTANCES
    assert own.memory_bytes < 250 * 1024 * 1024
    assert own.leftovers() == []
    assert await _git("-C", str(harness), "status", "--porcelain", "--untracked-files=no") == ""


def _spec(name: str) -> dict[str, str]:
    """Return the settings of a spec that is the usual one, with a repository in each home."""
    command = ("sh", "-c", REPOSITORY, "sh", *(DEFAULT_SPEC.command or ()))
    ports = [msgspec.structs.asdict(port) for port in DEFAULT_SPEC.ports]
    told = {"command": command, "env": DEFAULT_SPEC.env, "ports": ports}
    settings = {key: json.dumps(told[key]) for key in told} | {"backend": DEFAULT_SPEC.backend}
    return {f"AGENTSVC_SPECS__{name}__{key.upper()}": text for key, text in settings.items()}


def _name(number: int) -> str:
    return f"acme__project-{number}"


def _write_data_set(file: Path) -> None:
    """Write one instance a line; a name that ended in `.jsonl` would lead the harness's errors astray."""
    lines = [
        {
            "instance_id": _name(number),
            # It is copied to a directory of that name, which is a sandbox's own.
            "repo": "acme/project",
            "version": "1",
            "base_commit": "base",
            "problem_statement": run(f"cd /workspace/project && echo fixed-{number} >>name.txt"),
        }
        for number in range(INSTANCES)
    ]
    file.write_text("".join(f"{json.dumps(one)}\n" for one in lines))


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Return what the harness wrote of each instance."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {one["instance_id"]: one for one in map(json.loads, lines)}


def _check(one: dict[str, Any], number: int) -> None:
    """Fail unless the agent came to an end, and its patch is that of its own instance."""
    assert one["error"] is None
    assert one["test_result"]["git_patch"].splitlines()[-2:] == [" one", f"+fixed-{number}"]
    last = [event for event in one["history"] if event["kind"] == "ActionEvent"][-1]
    assert last["tool_name"] == "finish"
    assert len(one["runtime_runs"]) == 1


async def _git(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "git", *arguments, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, arguments
    return said.decode()
