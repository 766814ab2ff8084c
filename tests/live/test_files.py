"""Files, git state, skills, hooks, downloads and waiting messages, on the real agent server."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from agentsvc.base.values import dashed
from tests.live.client import LiveClient
from tests.live.events import said
from tests.live.installation import Installation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/app-conversations"
USUAL_ROOT = "/workspace/project"
SKILL = "---\nname: tea\ntriggers:\n- brew\n---\nBoil water first.\n"
HOOK = {"type": "command", "command": "true", "timeout": 9}


async def test_the_work_of_an_agent_can_be_looked_at(
    client: LiveClient, shared: Installation
) -> None:
    commit = "git -c user.name=A -c user.email=a@example.com commit -qm first"
    conversation_id = await client.start_conversation(
        run(f"echo one >a && git add a && {commit}", "echo two >a && echo new >b")
    )
    seen = await client.wait_for_execution(conversation_id, "finished")
    path = f"{PATH}/{conversation_id}"
    project = shared.sandbox_dir(seen["sandbox_id"]) / "workspace"

    changes = (await client.get(f"{path}/git/changes?path={USUAL_ROOT}&ref=HEAD")).json()
    assert sorted(changes, key=lambda change: str(change["path"])) == [
        {"status": "UPDATED", "path": "a"},
        {"status": "ADDED", "path": "b"},
    ]
    diff = await client.get(f"{path}/git/diff?path={USUAL_ROOT}/a&ref=HEAD")
    assert diff.json() == {"modified": "two", "original": "one"}
    file = await client.get(f"{path}/file?file_path={USUAL_ROOT}/b")
    assert (file.status, file.json()) == (200, "new\n")
    assert (await client.get(f"{path}/file")).json() == ""
    assert (await client.get(f"{path}/git/changes?path=/none")).status == 404
    for wrong in (f"changes?path={USUAL_ROOT}&ref=none", f"diff?path={USUAL_ROOT}/none"):
        answer = await client.get(f"{path}/git/{wrong}")
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    await _check_skills_and_hooks(client, path, project)
    await _check_paused(client, path, seen["sandbox_id"])


async def _check_skills_and_hooks(client: LiveClient, path: str, project: Path) -> None:
    assert (await client.get(f"{path}/hooks")).json() == {"hooks": []}
    (project / ".openhands" / "skills").mkdir(parents=True)
    (project / ".openhands" / "skills" / "tea.md").write_text(SKILL)
    matchers = [{"matcher": "terminal", "hooks": [HOOK]}]
    (project / ".openhands" / "hooks.json").write_text(json.dumps({"pre_tool_use": matchers}))

    skills = (await client.get(f"{path}/skills")).json()["skills"]
    [tea] = [skill for skill in skills if skill["name"] == "tea"]
    assert tea["type"] == "knowledge"
    assert tea["triggers"] == ["brew"]
    assert "Boil water" in tea["content"]
    [event] = (await client.get(f"{path}/hooks")).json()["hooks"]
    assert event["event_type"] == "pre_tool_use"
    assert event["matchers"] == [{"matcher": "terminal", "hooks": [{**HOOK, "async": False}]}]


async def _check_paused(client: LiveClient, path: str, sandbox_id: str) -> None:
    assert (await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert (await client.get(f"{path}/file?file_path={USUAL_ROOT}/b")).json() == ""
    assert (await client.get(f"{path}/git/changes?path={USUAL_ROOT}")).status == 409
    assert (await client.get(f"{path}/skills")).json() == {"skills": []}
    assert (await client.get(f"{path}/hooks")).json() == {"hooks": []}


async def test_a_download_has_every_event(client: LiveClient, sandbox_id: str) -> None:
    conversation_id = await client.start_conversation(run("echo out"), sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "finished")
    events = await client.events(conversation_id)
    answer = await client.get(f"{PATH}/{conversation_id}/download")
    assert answer.status == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.testzip() is None
        meta, *names = archive.namelist()
        found = [json.loads(archive.read(name)) for name in names]
        assert json.loads(archive.read(meta))["id"] == conversation_id
    assert meta == "meta.json"
    assert found[: len(events)] == events
    assert dashed(conversation_id) in answer.headers["Content-Disposition"]


async def test_messages_that_wait_survive_a_kill_of_the_server(own: Installation) -> None:
    client = own.client()
    task = await client.start_task("[script:say]")
    texts = [f"[script:say] number {number}" for number in range(3)]
    for position, text in enumerate(texts, 1):
        answer = await client.post(
            f"/api/v1/conversations/task-{task['id']}/pending-messages",
            json={"content": [{"type": "text", "text": text}]},
        )
        assert (answer.status, answer.json()["position"]) == (201, position)
    await own.kill()
    await own.start()
    conversation_id = (await client.end_of_start(task["id"]))["app_conversation_id"]
    events = await client.until(conversation_id, lambda events: len(said(events, "user")) == 4)
    assert said(events, "user") == ["[script:say]", *texts]
    await client.wait_for_execution(conversation_id, "finished")
