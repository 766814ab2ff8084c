"""What is read out of a conversation's sandbox: files, git state, skills, hooks."""

import re
import subprocess
from pathlib import Path

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.conversations.files import listing_command
from agentsvc.http.keys import DATABASE, SETTINGS
from agentsvc.settings.fields import SettingsPatch
from tests.fake_agent import FakeAgent, listed, make_long_names, run_in_pieces
from tests.fake_sandbox import FakeSandbox
from tests.service import Client, Service

PATH = "/api/v1/app-conversations"
UNKNOWN = f"{PATH}/{'0' * 32}"
SKILL = {
    "name": "brew",
    "type": "knowledge",
    "content": "Boil water first.",
    "triggers": ["tea"],
    "source": "project",
    "description": None,
    "is_agentskills_format": False,
}
HOOKS = {
    "pre_tool_use": [
        {
            "matcher": "terminal",
            "hooks": [
                {
                    "type": "command",
                    "name": None,
                    "command": "check.sh",
                    "prompt": None,
                    "timeout": 7,
                    "async": True,
                }
            ],
        }
    ],
    "post_tool_use": [],
    "stop": [],
}
READS = ["/file", "/files", "/git/changes?path=x", "/git/diff?path=x", "/skills", "/hooks"]


@pytest.fixture
async def path(client: Client) -> str:
    """Return the path of a conversation that is ready and does nothing."""
    return f"{PATH}/{await client.start_conversation(None)}"


@pytest.fixture
def sandbox(path: str, fake_agent: FakeAgent) -> FakeSandbox:
    """Return the sandbox of that conversation."""
    [found] = fake_agent.sandboxes.values()
    return found


@pytest.fixture
def project(path: str, fake_agent: FakeAgent) -> str:
    """Return the directory that conversation works in."""
    found = fake_agent.find_conversation(path.rpartition("/")[2])
    assert found is not None
    return str(found.body["workspace"]["working_dir"])


async def _pause(client: Client, sandbox: FakeSandbox) -> None:
    answer = await client.post(f"/api/v1/sandboxes/{sandbox.sandbox_id}/pause")
    assert answer.status == 200, answer.text
    await client.wait_for_sandbox(sandbox.sandbox_id, "PAUSED")


# Files


async def test_a_file_is_read_by_its_absolute_path(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.files["/workspace/project/notes/a b.txt"] = "Grüße\n".encode()
    answer = await client.get(f"{path}/file?file_path=/workspace/project/notes/a%20b.txt")
    assert (answer.status, answer.json()) == (200, "Grüße\n")


async def test_a_relative_path_is_below_the_project(
    client: Client, path: str, sandbox: FakeSandbox, project: str
) -> None:
    sandbox.files[f"{project}/docs/x"] = b"here"
    assert (await client.get(f"{path}/file?file_path=docs/x")).json() == "here"


async def test_without_a_path_the_plan_is_read(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.files["/workspace/project/PLAN.md"] = b"# Plan"
    assert (await client.get(f"{path}/file")).json() == "# Plan"


async def test_a_file_that_is_not_there_is_an_empty_text(client: Client, path: str) -> None:
    answer = await client.get(f"{path}/file?file_path=/workspace/project/none")
    assert (answer.status, answer.json()) == (200, "")


async def test_a_file_that_is_no_text_is_an_empty_text(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.files["/workspace/project/image"] = b"\xff\x00"
    assert (await client.get(f"{path}/file?file_path=/workspace/project/image")).json() == ""


async def test_no_file_can_be_read_of_a_sandbox_that_is_paused_or_does_not_answer(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.files["/workspace/project/a"] = b"text"
    sandbox.is_down = True
    answers = [await client.get(f"{path}/file?file_path=/workspace/project/a")]
    sandbox.is_down = False
    await _pause(client, sandbox)
    answers.append(await client.get(f"{path}/file?file_path=/workspace/project/a"))
    answers.append(await client.get(f"{UNKNOWN}/file?file_path=/workspace/project/a"))
    assert [(answer.status, answer.json()) for answer in answers] == [(200, "")] * 3


async def test_a_file_of_somebody_else_cannot_be_read(
    client: Client, service: Service, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.files["/workspace/project/a"] = b"text"
    other = await service.make_client("bob", Role.MEMBER)
    assert (await other.get(f"{path}/file?file_path=/workspace/project/a")).json() == ""
    assert (await other.get(f"{path}/git/changes?path=/workspace/project/a")).status == 404


async def test_the_files_of_a_project_are_listed(
    client: Client, path: str, sandbox: FakeSandbox, project: str, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("find .", listed("README.md\nsrc/a b.py\n"))
    for query in ("", "?path=/workspace/project", "?path=."):
        answer = await client.get(f"{path}/files{query}")
        assert (answer.status, answer.json()) == (200, ["README.md", "src/a b.py"])
        assert f"cd -- {project} " in sandbox.commands[-1]
    outside = await client.get(f"{path}/files?path=/etc")
    assert (outside.status, outside.json()["code"]) == (404, "not_found")
    await _pause(client, sandbox)
    assert (await client.get(f"{path}/files")).status == 409


async def test_names_are_whole_however_the_list_is_read(
    client: Client, path: str, sandbox: FakeSandbox, fake_agent: FakeAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "names"
    names = make_long_names(folder)
    await client.get(f"{path}/files?path=/workspace/project/names")
    command = re.sub(r"cd -- \S+", f"cd -- {folder}", sandbox.commands[-2])
    fake_agent.on_command("find .", run_in_pieces(command))
    assert (await client.get(f"{path}/files")).json() == names


def test_the_command_that_lists_files_does_so(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    for name in ("b.txt", "B.txt", "src/deep/ä.py", ".env", ".git/HEAD", "node_modules/x/y.js"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    ran = subprocess.run(
        ["/bin/sh", "-c", listing_command(str(folder))], check=True, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == [".env", "B.txt", "b.txt", "src/deep/ä.py"]
    nowhere = listing_command(str(tmp_path / "nowhere"))
    assert subprocess.run(["/bin/sh", "-c", nowhere], check=True, capture_output=True).stdout == b""


# Git


async def test_git_changes_are_those_of_the_directory(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    changes = [{"status": "ADDED", "path": "new"}, {"status": "DELETED", "path": "old"}]
    sandbox.git_changes["/workspace/project/repo"] = changes
    answer = await client.get(f"{path}/git/changes?path=/workspace/project/repo")
    assert (answer.status, answer.json()) == (200, changes)
    assert (
        await client.get(f"{path}/git/changes?path=/workspace/project/repo&ref=HEAD")
    ).json() == changes


@pytest.mark.parametrize("trouble", ["a space", "a quote"])
async def test_a_changed_file_has_its_own_name(
    client: Client, path: str, sandbox: FakeSandbox, fake_agent: FakeAgent, trouble: str
) -> None:
    listed = CommandResult(exit_code=0, stdout="agentsvc: changes of .\nM\ta b.txt\n", stderr="")
    fake_agent.on_command("agentsvc: changes of", listed)
    # Agent servers do this of such a name.
    sandbox.git_changes["/workspace/project"] = [{"status": "UPDATED", "path": '"/303/274.txt"'}]
    if trouble == "a space":
        sandbox.fail_next(400, "/api/git/changes")
    answer = await client.get(f"{path}/git/changes?path=/workspace/project")
    expected = [{"status": "UPDATED", "path": "a b.txt"}]
    assert (answer.status, answer.json()) == (200, expected)


async def test_half_of_a_list_of_changes_is_none(
    client: Client, path: str, sandbox: FakeSandbox, fake_agent: FakeAgent
) -> None:
    text = "".join(f"M\t{number} b.txt\n" for number in range(30_000))
    fake_agent.on_command(
        "agentsvc: changes of", CommandResult(exit_code=0, stdout=text, stderr="")
    )
    sandbox.git_changes["/workspace/project"] = []
    sandbox.fail_next(400, "/api/git/changes")
    answer = await client.get(f"{path}/git/changes?path=/workspace/project")
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


async def test_where_no_repository_is_nothing_has_changed(client: Client, path: str) -> None:
    answer = await client.get(f"{path}/git/changes?path=/workspace/project/elsewhere")
    assert (answer.status, answer.json()) == (200, [])


async def test_a_git_diff_has_both_sides_of_a_file(
    client: Client, path: str, sandbox: FakeSandbox, project: str
) -> None:
    sandbox.git_diffs[f"{project}/a"] = {"modified": "new", "original": "old"}
    sandbox.files["/workspace/project/plain"] = b"text"
    answer = await client.get(f"{path}/git/diff?path=a")
    assert (answer.status, answer.json()) == (200, {"modified": "new", "original": "old"})
    answer = await client.get(f"{path}/git/diff?path=/workspace/project/plain")
    assert answer.json() == {"modified": None, "original": None}


@pytest.mark.parametrize(
    "what",
    ["git/changes?path=/workspace/project/repo&ref=none", "git/diff?path=/workspace/project/none"],
)
async def test_a_ref_or_a_file_that_git_does_not_find_is_a_400(
    client: Client, path: str, sandbox: FakeSandbox, what: str
) -> None:
    sandbox.git_changes["/workspace/project/repo"] = []
    answer = await client.get(f"{path}/{what}")
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    assert answer.json()["detail"].startswith("git finds no such file or ref")


async def test_what_the_agent_server_cannot_do_with_git_is_a_502(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.git_changes["/workspace/project"] = []
    sandbox.fail_next(500, "/api/git/changes")
    answer = await client.get(f"{path}/git/changes?path=/workspace/project")
    assert (answer.status, answer.json()["detail"]) == (502, "Agent server error: 500")


@pytest.mark.parametrize("ref", ["--output=x", "", "a%20b", "a%0ab"])
async def test_what_can_be_no_ref_is_a_400(
    client: Client, path: str, sandbox: FakeSandbox, ref: str
) -> None:
    for what in ("changes", "diff"):
        answer = await client.get(f"{path}/git/{what}?path=/workspace/project/repo&ref={ref}")
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    assert not any("/api/git/" in request for request in sandbox.requests)


@pytest.mark.parametrize("what", ["changes", "diff"])
async def test_git_needs_a_path(client: Client, path: str, what: str) -> None:
    answer = await client.get(f"{path}/git/{what}")
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "path"]
    assert (await client.get(f"{path}/git/{what}?path=")).status == 422


@pytest.mark.parametrize("what", ["changes", "diff"])
async def test_git_of_a_paused_sandbox_is_a_409(
    client: Client, path: str, sandbox: FakeSandbox, what: str
) -> None:
    await _pause(client, sandbox)
    answer = await client.get(f"{path}/git/{what}?path=/workspace/project/repo")
    assert answer.status == 409
    assert answer.json()["detail"] == "Sandbox is paused; resume it before reading git state."


async def test_git_of_a_sandbox_that_is_gone_is_a_404(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    await client.delete(f"/api/v1/sandboxes/{sandbox.sandbox_id}")
    await client.wait_for_conversation(
        path.rpartition("/")[2], lambda seen: seen["sandbox_status"] == "MISSING"
    )
    answer = await client.get(f"{path}/git/changes?path=/workspace/project/repo")
    assert answer.status == 404
    assert "MISSING" in answer.json()["detail"]


async def test_git_of_a_server_that_does_not_answer_is_a_502(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.is_down = True
    answer = await client.get(f"{path}/git/changes?path=/workspace/project/repo")
    assert (answer.status, answer.json()["code"]) == (502, "agent_unavailable")


# Skills and hooks


async def test_skills_show_what_calls_for_them(
    client: Client, path: str, sandbox: FakeSandbox, project: str
) -> None:
    sandbox.skills = [SKILL, {**SKILL, "name": "AGENTS", "type": "repo", "triggers": []}]
    answer = await client.get(f"{path}/skills")
    assert answer.status == 200
    names = ("name", "type", "content", "triggers")
    assert answer.json() == {"skills": [{n: one[n] for n in names} for one in sandbox.skills]}
    [order] = [body for where, body in sandbox.bodies if where == "/api/skills"]
    assert (order["project_dir"], order["load_public"]) == (project, False)


async def test_a_disabled_skill_is_not_shown(
    client: Client, service: Service, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.skills = [SKILL]
    [[user_id, _]] = await service.app[DATABASE].all("SELECT id, name FROM users")
    await service.app[SETTINGS].patch(user_id, SettingsPatch(disabled_skills=("brew",)))
    assert (await client.get(f"{path}/skills")).json() == {"skills": []}


async def test_hooks_are_listed_by_what_happens(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    assert (await client.get(f"{path}/hooks")).json() == {"hooks": []}
    sandbox.hook_config = HOOKS
    answer = await client.get(f"{path}/hooks")
    hook = {"type": "command", "command": "check.sh", "timeout": 7, "async": True}
    matchers = [{"matcher": "terminal", "hooks": [hook]}]
    expected = {"hooks": [{"event_type": "pre_tool_use", "matchers": matchers}]}
    assert (answer.status, answer.json()) == (200, expected)


async def test_a_paused_sandbox_shows_no_skills_and_no_hooks(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.skills, sandbox.hook_config = [SKILL], HOOKS
    await _pause(client, sandbox)
    for what in ("skills", "hooks"):
        answer = await client.get(f"{path}/{what}")
        assert (answer.status, answer.json()) == (200, {what: []})


@pytest.mark.parametrize("what", ["skills", "hooks"])
async def test_skills_and_hooks_say_what_is_wrong_where_clients_look(
    client: Client, path: str, sandbox: FakeSandbox, what: str
) -> None:
    answer = await client.get(f"{UNKNOWN}/{what}")
    assert (answer.status, answer.json()["error"]) == (404, answer.json()["detail"])
    sandbox.fail_next(500, f"/api/{what}")
    answer = await client.get(f"{path}/{what}")
    assert (answer.status, answer.json()["error"]) == (502, answer.json()["detail"])
    sandbox.skills, sandbox.hook_config = [{"name": 1}], {"stop": 1}
    answer = await client.get(f"{path}/{what}")
    assert (answer.status, answer.json()["code"]) == (502, "agent_refused")


# All of them


@pytest.mark.parametrize("what", READS)
async def test_an_id_that_is_none_is_a_422(client: Client, what: str) -> None:
    answer = await client.get(f"{PATH}/nonsense{what}")
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, ["path", "conversation_id"])


@pytest.mark.parametrize("what", READS)
async def test_a_key_is_needed(service: Service, what: str) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.get(UNKNOWN + what)).status == 401


@pytest.mark.parametrize("what", [one for one in READS if one != "/file"])
async def test_a_conversation_that_is_not_there_is_a_404(client: Client, what: str) -> None:
    answer = await client.get(UNKNOWN + what)
    assert (answer.status, answer.json()["code"]) == (404, "not_found")


async def test_nothing_outside_of_the_workspace_is_read(
    client: Client, path: str, sandbox: FakeSandbox
) -> None:
    sandbox.files["/etc/master.key"] = b"key"
    for way in ("/etc/master.key", "/workspace/project/../etc/master.key"):
        assert (await client.get(f"{path}/file?file_path={way}")).json() == ""
        assert (await client.get(f"{path}/git/diff?path={way}")).status == 404
