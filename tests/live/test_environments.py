"""Prepared environments: a set-up that is done once, and copied into each new sandbox."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.git_server import GitServer, run_git
from tests.live.client import PATIENCE, LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.events import outputs
from tests.live.installation import Installation, eventually
from tests.live.scripts import run
from tests.live.test_repositories import files_with, provider

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/environments"
SETUP = """
set -e
mkdir -p deps
echo "$CHANNEL $(cat requirements.txt)" >>deps/built
ln -sf /usr/bin/env deps/tool
printf '#!%s/deps/tool sh\\necho ran\\n' "$PWD" >deps/run && chmod +x deps/run
echo cached >~/cache
touch -d @978307200 requirements.txt
[ ! -e slow ] || { touch "$HOME/at-it"; sleep 600; }
echo "done with $TOKEN"
"""


HOSTILE = {
    "large": " " * 10_000_000,
    "deep": "[" * 30_000,
    "wrong": '{"postCreateCommand": 1}',
}


async def wait_for(client: LiveClient, made: dict[str, Any], status: str) -> dict[str, Any]:
    async with asyncio.timeout(2 * PATIENCE):
        while True:
            found: dict[str, Any] = (await client.get(f"{PATH}/{made['id']}")).json()
            if found["status"] == status:
                return found
            assert found["status"] in ("waiting", "preparing"), found
            await asyncio.sleep(0.1)


async def test_a_conversation_begins_with_what_was_prepared(
    own: Installation, git_server: GitServer
) -> None:
    client = own.client()
    await client.save_settings(**provider(git_server))
    await git_server.add_repository(
        "acme/site", {"requirements.txt": "one\n"}, branches={"next": {"requirements.txt": "two\n"}}
    )
    await client.post("/api/v1/secrets", json={"name": "TOKEN", "value": "s3cret-of-the-setup"})
    order = {
        "name": "Site",
        "repository": "acme/site",
        "provider": "gitlab",
        "setup_script": SETUP,
        "maintenance_script": "echo maintained >kept-fresh",
        "variables": {"CHANNEL": "stable"},
        "secrets": ["TOKEN"],
    }
    answer = await client.post(PATH, json=order)
    assert answer.status == 201, answer.text
    ready = await wait_for(client, answer.json(), "ready")
    assert ready["log"] == "done with ***"
    assert ready["size_bytes"] > 0
    assert await _sandboxes(client) == []
    assert files_with(git_server.token.reveal(), [own.data.path / "backends"]) == []

    at_main = await client.start_conversation(
        run(
            "cat deps/built ~/cache kept-fresh",
            "deps/run",
            "git branch --show-current; git status -s",
            "stat -c %Y requirements.txt",
        ),
        selected_repository="acme/site",
        git_provider="gitlab",
    )
    await client.wait_for_execution(at_main, "finished")
    built, ran, branch, changed_at = outputs(await client.events(at_main))
    assert built.split() == ["stable", "one", "cached", "maintained"]
    assert ran == "ran"
    assert branch.split()[0] == f"openhands-workspace-{at_main[:8]}"
    # What has not changed looks older than what was built of it, to whatever builds by times.
    assert changed_at == "978307200"

    # The other branch has other dependencies: the set-up runs there once more, and only there.
    at_next = await client.start_conversation(
        run("cat deps/built", "git branch --show-current"),
        selected_repository="acme/site",
        selected_branch="next",
        git_provider="gitlab",
    )
    await client.wait_for_execution(at_next, "finished")
    built, branch = outputs(await client.events(at_next))
    assert built.split() == ["stable", "one", "stable", "two"]
    assert branch == "next"

    await _delete_all(client, own)


OWN = 'echo "$CHANNEL $(cat requirements.txt)" >>built\n'


async def test_the_scripts_of_the_repository_are_found_and_done_again(
    own: Installation, git_server: GitServer
) -> None:
    client = own.client()
    await client.save_settings(**provider(git_server))
    files = {".agentsvc/setup.sh": OWN, ".openhands/setup.sh": "echo own >own\n"}
    await git_server.add_repository(
        "acme/own",
        {**files, "requirements.txt": "one\n"},
        branches={"next": {"requirements.txt": "two\n"}},
    )
    named = {"repository": "acme/own", "provider": "gitlab"}
    order = {"name": "Own", "variables": {"CHANNEL": "stable"}, **named}
    await wait_for(client, (await client.post(PATH, json=order)).json(), "ready")
    tools = await client.post(PATH, json={"name": "Tools", "setup_script": "echo tools >~/tools"})
    ready = await wait_for(client, tools.json(), "ready")

    async def found(**order: Any) -> list[str]:
        begun = await client.start_conversation(
            run("cat built own ~/tools"),
            selected_repository="acme/own",
            git_provider="gitlab",
            **order,
        )
        await client.wait_for_execution(begun, "finished")
        return [
            line for line in outputs(await client.events(begun))[0].splitlines() if ":" not in line
        ]

    assert await found() == ["stable one"]
    assert await found(selected_branch="next") == ["stable one", "stable two"]
    # What is of no repository takes nothing away from one that a conversation brings.
    assert await found(environment_id=ready["id"]) == ["own", "tools"]
    await _delete_all(client, own)


DEVCONTAINER = """{
    // What an editor would do with it.
    "image": "mcr.microsoft.com/devcontainers/base:debian",
    "remoteEnv": {"PATH": "${containerWorkspaceFolder}/bin:${containerEnv:PATH}", "LEVEL": "two words"},
    "onCreateCommand": ["sh", "-c", "mkdir -p bin && printf 'echo $LEVEL' >bin/level && chmod +x bin/level"],
    "postCreateCommand": {"first": "level >>built", "second": "cat base >>built"},
    "postStartCommand": "level >started",
    "runArgs": ["--privileged"],
}"""


async def test_what_a_devcontainer_says_is_done(own: Installation, git_server: GitServer) -> None:
    client = own.client()
    await client.save_settings(**provider(git_server))
    files = {
        ".devcontainer/devcontainer.json": DEVCONTAINER,
        ".agentsvc/setup.sh": "echo base >base",
    }
    again = {".devcontainer/devcontainer.json": f"{DEVCONTAINER}\n"}
    await git_server.add_repository("acme/dev", files, branches={"next": again})
    order = {"name": "Dev", "repository": "acme/dev", "provider": "gitlab"}
    ready = await wait_for(client, (await client.post(PATH, json=order)).json(), "ready")
    note = "Left out of `.devcontainer/devcontainer.json`: `image` (the backend has no images), `runArgs`"
    assert (ready["detail"], ready["log"]) == (note, note)

    async def begun(branch: str | None) -> list[str]:
        conversation = await client.start_conversation(
            run("cat built started", "level; command -v level"),
            selected_repository="acme/dev",
            selected_branch=branch,
            git_provider="gitlab",
        )
        await client.wait_for_execution(conversation, "finished")
        return outputs(await client.events(conversation))

    said = "two words\nbase\n"
    project = "/workspace/project/dev"
    shell = f"two words\n{project}/bin/level"
    assert await begun(None) == [f"{said}two words", shell]
    # Where the file is another one, all of it is done once more.
    assert await begun("next") == [f"{said}{said}two words", shell]

    for name, content in HOSTILE.items():
        await git_server.add_repository(f"acme/{name}", {".devcontainer.json": content})
        order = {"name": name, "repository": f"acme/{name}", "provider": "gitlab"}
        failed = await wait_for(client, (await client.post(PATH, json=order)).json(), "failed")
        assert "`.devcontainer.json`" in failed["detail"], failed
        without = await client.patch(f"{PATH}/{failed['id']}", json={"devcontainer": "none"})
        await wait_for(client, without.json(), "ready")
    lost = {**order, "devcontainer": "not/there.json"}
    failed = await wait_for(client, (await client.post(PATH, json=lost)).json(), "failed")
    assert failed["detail"] == "The repository has no file `not/there.json`"
    image = await client.post(PATH, json={**order, "image": "debian:13"})
    assert (image.status, "has no images" in image.text) == (409, True)
    await _delete_all(client, own)


async def test_what_a_set_up_leaves_running_keeps_nobody_waiting(
    make_installation: MakeInstallation, git_server: GitServer
) -> None:
    told = {"AGENTSVC_EXTENSIONS__ENVIRONMENTS__PREPARE_SECONDS": "40"}
    own = await make_installation(**told)
    client = own.client()
    await client.save_settings(**provider(git_server))
    # The first agent server takes longest, and may take longer than a set-up may here.
    first = (await client.post("/api/v1/sandboxes")).json()
    await client.wait_for_sandbox(first["id"], "RUNNING", time_limit=2 * PATIENCE)
    order = {"name": "Server", "setup_script": "sleep 987 & echo begun"}
    ready = await wait_for(client, (await client.post(PATH, json=order)).json(), "ready")
    assert ready["log"] == "begun"
    order = {"name": "Slow", "setup_script": "echo before; echo this >&2; sleep 987"}
    failed = await wait_for(client, (await client.post(PATH, json=order)).json(), "failed")
    assert failed["detail"] == "The set-up script took longer than the 40 s of `prepare_seconds`"
    assert failed["log"] == "before\nthis"

    files = {".openhands/setup.sh": "sleep 987 & echo $! >pid\n"}
    await git_server.add_repository("acme/server", files)
    begun = await client.start_conversation(
        run("kill -0 $(cat pid) && echo runs"),
        selected_repository="acme/server",
        git_provider="gitlab",
    )
    await client.wait_for_execution(begun, "finished")
    assert outputs(await client.events(begun)) == ["runs"]
    await _delete_all(client, own)


async def test_a_set_up_that_was_killed_is_done_again_and_leaves_nothing(
    own: Installation,
) -> None:
    client = own.client()
    order = {"name": "Slow", "setup_script": f"touch slow\n{SETUP.replace('cat req', 'echo req')}"}
    made = (await client.post(PATH, json=order)).json()
    at_it = own.at_home("at-it")
    await eventually(at_it.exists, "the set-up runs", time_limit=2 * PATIENCE)
    await own.kill()
    await own.restart()
    client = own.client()
    await client.patch(f"{PATH}/{made['id']}", json={"setup_script": "echo quick >made"})
    ready = await wait_for(client, made, "ready")
    assert await _sandboxes(client) == []
    begun = await client.start_conversation(run("cat made"), environment_id=ready["id"])
    await client.wait_for_execution(begun, "finished")
    assert outputs(await client.events(begun)) == ["quick"]
    failing = (
        await client.post(PATH, json={"name": "Bad", "setup_script": "echo why; exit 3"})
    ).json()
    failed = await wait_for(client, failing, "failed")
    assert (failed["detail"], failed["log"]) == ("The set-up script ended with exit code 3", "why")
    deadly = (await client.post(PATH, json={"name": "Deadly", "setup_script": "kill -9 -1"})).json()
    failed = await wait_for(client, deadly, "failed")
    assert failed["detail"].startswith(
        "The set-up's processes were killed (signal 9), and its sandbox with them. Check "
    )
    layers = own.data.path / "backends" / "process" / ".layers"
    assert len(list(layers.iterdir())) == 1
    await _delete_all(client, own)


@pytest.mark.timeout(900)
async def test_a_kill_while_files_are_shared_leaves_nothing_half_done(own: Installation) -> None:
    client = own.client()
    sandboxes = own.data.path / "backends" / "process"
    many = "mkdir deps && cd deps && seq 20000 | xargs touch && echo quick >../made"
    made = (await client.post(PATH, json={"name": "Many", "setup_script": many})).json()

    async def killed_when(begins: Callable[[], object], what: str) -> None:
        await eventually(begins, what, time_limit=2 * PATIENCE)
        await own.kill()
        await own.start()

    await killed_when(lambda: [*sandboxes.glob(".layers/*.part")], "the layer is being made")
    client = own.client()
    ready = await wait_for(client, made, "ready")
    assert len(list((sandboxes / ".layers").iterdir())) == 1
    task = await client.start_task(run("ls deps | wc -l; cat made"), environment_id=ready["id"])
    at_it = ("*/over-*", "*/layer.part")
    await killed_when(
        lambda: [one for name in at_it for one in sandboxes.glob(name)], "it begins with it"
    )
    client = own.client()
    ended = await client.end_of_start(task["id"], time_limit=3 * PATIENCE)
    conversation = ended["app_conversation_id"]
    await client.wait_for_execution(conversation, "finished")
    assert outputs(await client.events(conversation))[0].split() == ["20000", "quick"]
    is_shared = bool(own.mounts())
    assert len(own.mounts()) == 2 * is_shared

    # While it is used its layer stays, whatever becomes of the environment.
    assert (await client.delete(f"{PATH}/{ready['id']}")).status == 200
    if is_shared:
        await eventually(lambda: [*sandboxes.glob(".layers/*.held")], "the layer is held")
    [sandbox] = await _sandboxes(client)
    at_it = ("*/leaving", "*/over.old")
    await asyncio.gather(
        client.delete(f"/api/v1/sandboxes/{sandbox['id']}"),
        killed_when(
            lambda: (
                [one for name in at_it for one in sandboxes.glob(name)]
                or not [*sandboxes.glob("*/record.json")]
            ),
            "the sandbox is removed",
        ),
        return_exceptions=True,
    )
    await eventually(
        lambda: not [*sandboxes.glob("*/record.json")] and not (sandboxes / ".layers").exists(),
        "all is removed",
    )
    assert own.mounts() == []


SUBMODULES = """
set -e
helper='!f() { echo username=x; echo "password=$TOKEN"; }; f'
git ${TOKEN:+-c credential.helper="$helper"} submodule --quiet update --init
cat lib/version >>~/built
"""


async def test_submodules_are_at_the_commits_of_the_branch(
    own: Installation, git_server: GitServer
) -> None:
    client = own.client()
    await client.save_settings(**provider(git_server))
    versions = {"next": {"version": "two"}}
    await git_server.add_repository("acme/lib", {"version": "one"}, branches=versions)
    modules = '[submodule "lib"]\n\tpath = lib\n\turl = ../lib.git\n'
    await git_server.add_repository("acme/whole", {".gitmodules": modules}, branches={"next": {}})
    work = git_server.root / "acme" / "whole.work"
    for branch in ("main", "next"):
        commit = await run_git("rev-parse", branch, cwd=git_server.root / "acme" / "lib.work")
        await run_git("checkout", "--quiet", branch, cwd=work)
        link = f"160000,{commit.strip()},lib"
        await run_git("update-index", "--add", "--cacheinfo", link, cwd=work)
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        await run_git(*who, "commit", "--quiet", "-m", "Add it", cwd=work)
    await run_git("push", "--quiet", "--all", str(git_server.root / "acme/whole.git"), cwd=work)
    token = git_server.token.reveal()
    await client.post("/api/v1/secrets", json={"name": "TOKEN", "value": token})
    named = {"repository": "acme/whole", "provider": "gitlab"}
    order = {"name": "Whole", "setup_script": SUBMODULES, "secrets": ["TOKEN"], **named}
    await wait_for(client, (await client.post(PATH, json=order)).json(), "ready")

    async def found(branch: str | None) -> str:
        begun = await client.start_conversation(
            run("cat ~/built lib/version; git status --short"),
            selected_repository="acme/whole",
            selected_branch=branch,
            git_provider="gitlab",
        )
        await client.wait_for_execution(begun, "finished")
        return outputs(await client.events(begun))[0]

    assert await found(None) == "oneone"
    assert await found("next") == "onetwotwo"
    await _delete_all(client, own)


async def _delete_all(client: LiveClient, own: Installation) -> None:
    for one in (await client.get(PATH)).json()["items"]:
        assert (await client.delete(f"{PATH}/{one['id']}")).status == 200
    layers = own.data.path / "backends" / "process" / ".layers"
    # Sandboxes that lie over one keep it.
    await eventually(
        lambda: {path.suffix for path in layers.glob("*")} <= {".held"}, "nobody else has one"
    )
    for sandbox in await _sandboxes(client):
        assert (await client.delete(f"/api/v1/sandboxes/{sandbox['id']}")).status == 200
    # What a set-up has run in goes after its environment.
    await eventually(lambda: not own.sandbox_dirs(), "layers and sandboxes are gone")


async def _sandboxes(client: LiveClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/api/v1/sandboxes/search")).json()["items"]
    return found
