"""Attempts: one task for several agents, in real sandboxes with a real repository."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.git_server import GitServer
from tests.live.client import PATIENCE, LiveClient
from tests.live.events import outputs, said
from tests.live.installation import Installation, command_line, eventually
from tests.live.scripts import MODEL_NAME, run
from tests.live.test_repositories import provider

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/attempts"
type Json = dict[str, Any]


async def create(client: LiveClient, **fields: Any) -> Json:
    answer = await client.post(PATH, json=fields)
    assert answer.status == 201, answer.text
    made: Json = answer.json()
    return made


async def wait_until(client: LiveClient, made: Json, is_enough: Callable[[Json], bool]) -> Json:
    found: Json = {}
    try:
        async with asyncio.timeout(2 * PATIENCE):
            while True:
                found = (await client.get(f"{PATH}/{made['id']}")).json()
                if is_enough(found):
                    return found
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"they stayed like this: {found}") from None


def are(*statuses: str) -> Callable[[Json], bool]:
    return lambda found: [one["status"] for one in found["attempts"]] == list(statuses)


async def test_the_best_of_three_is_chosen_and_the_others_are_gone(
    own: Installation, git_server: GitServer
) -> None:
    client = own.client()
    await client.save_settings(**provider(git_server))
    answer = await client.post("/api/v1/settings/profiles/good", json={})
    assert answer.status in {200, 201}, answer.text
    await git_server.add_repository("acme/best", {"code": "one\ntwo\n"})
    task = run(
        f"echo {MODEL_NAME} >>made",
        # Who has the usual model commits what is right; another one leaves it there.
        f"test {MODEL_NAME} != scripted || {{ echo right >answer; rm code; git add -A;"
        " git -c user.name=a -c user.email=a@b.c commit -qm right; }",
        f"test {MODEL_NAME} != other || echo wrong >answer",
    )
    made = await create(
        client,
        message=task,
        title="Best",
        models=["openai/other", "good", "openai/third"],
        repository="acme/best",
        provider="gitlab",
        test_command="cat answer; grep -q right answer",
        budget=5,
    )
    done = await wait_until(client, made, are(*["finished"] * 3))
    other, good, third = done["attempts"]
    keys = ("files", "additions", "deletions", "test_exit_code")
    assert [other[key] for key in keys] == [2, 2, 0, 1]
    assert [good[key] for key in keys] == [3, 2, 2, 0]
    assert [third[key] for key in keys] == [1, 1, 0, 2]
    assert (other["test_output"], good["test_output"]) == ("wrong\n", "right\n")
    assert "answer" in third["test_output"]
    assert len(own.sandbox_dirs()) == 3

    answer = await client.post(f"{PATH}/{made['id']}/choose", json={"attempt": 2})
    assert answer.status == 200, answer.text
    await eventually(lambda: len(own.sandbox_dirs()) == 1, "the others are reclaimed")
    for gone in (other, third):
        found = await client.get(f"/api/v1/app-conversations?ids={gone['conversation_id']}")
        assert found.json() == [None]
    chosen = await client.wait_for_conversation(
        good["conversation_id"], lambda one: bool(one["title"] == "Best")
    )
    # Its sandbox rests, and a message wakes it.
    await client.send(chosen["id"], run("cat answer made"))
    await client.wait_for_execution(chosen["id"], "finished")
    assert outputs(await client.events(chosen["id"]))[-1].split() == ["right", "scripted"]


async def test_forks_go_on_after_a_kill_and_their_tests_run_once(own: Installation) -> None:
    client = own.client()
    first = await client.start_conversation(run("git init -q; echo start >begun; echo here >~/own"))
    await client.wait_for_execution(first, "finished")
    go, tested = own.at_home("go"), own.at_home("tested")
    made = await create(
        client,
        # What prints nothing for 30 s is not waited for.
        message=run(
            "cat ~/own >copied; until [ -e ~/go ]; do echo .; sleep 0.5; done; echo more >>begun"
        ),
        count=2,
        conversation_id=first,
        test_command="echo one >>~/tested; until [ -e ~/on ]; do sleep 0.1; done; cat ~/tested",
    )
    await own.kill()
    await own.restart()
    client = own.client()
    running = await wait_until(client, made, are("running", "running"))
    forks = [one["conversation_id"] for one in running["attempts"]]
    await own.kill()
    await own.restart()
    client = own.client()
    homes = [
        own.sandbox_dir((await client.conversation(one))["sandbox_id"]) / "home" for one in forks
    ]
    for home in homes:
        (home / "go").touch()
    assert go.exists()
    await eventually(lambda: all((home / "tested").exists() for home in homes), "tests run")
    assert tested.exists()
    await own.kill()
    await own.restart()
    client = own.client()
    for home in homes:
        (home / "on").touch()
    done = await wait_until(client, made, are("finished", "finished"))
    for one in done["attempts"]:
        assert (one["files"], one["additions"], one["deletions"]) == (2, 2, 0), one
        assert (one["test_exit_code"], one["test_output"]) == (0, "one\n")
        told = said(await client.events(one["conversation_id"]), "user")
        assert len([text for text in told if "copied" in text]) == 1
    assert len(own.sandbox_dirs()) == 3
    assert (await client.delete(f"{PATH}/{made['id']}")).status == 200
    await eventually(lambda: len(own.sandbox_dirs()) == 1, "the forks are reclaimed")
    assert (await client.get(PATH)).json() == {"items": []}
    await client.conversation(first)


async def test_all_are_stopped_when_their_budget_is_used_up(own: Installation) -> None:
    client = own.client()
    # What it costs is known of this one.
    await client.save_settings(llm_model="openai/gpt-4o")
    made = await create(client, message=run("true", "sleep 600"), count=2, budget=0.004)
    done = await wait_until(client, made, are("cancelled", "cancelled"))
    assert done["is_over_budget"]
    assert done["cost"] >= 0.004
    for one in done["attempts"]:
        assert "budget of all attempts is used up" in one["detail"]
    await eventually(lambda: "sleep 600" not in _commands(own), "nothing works any more")


def _commands(own: Installation) -> str:
    return "\n".join(command_line(one.pid).decode(errors="replace") for one in own.processes())
