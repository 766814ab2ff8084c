"""Commands that talk to a server, called as a person calls them, against one that runs."""

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from agentsvc.agentserver.responses import CommandResult
from agentsvc.cli import cli
from agentsvc.storage.database_file import lock_data_dir
from agentsvc.testing.backend import FakeWorld
from agentsvc.testing.llm import call, fail
from tests.fake_agent import FakeAgent
from tests.github_app_host import APP, HOOK, AppHost
from tests.live.scripts import SCRIPTS
from tests.service import Client, Service


@pytest.fixture
async def fake_agent() -> AsyncIterator[FakeAgent]:
    refused = (call("terminal", command="true"), fail(401))
    async with FakeAgent(scripts={**SCRIPTS, "refused": refused}) as agent:
        yield agent


class Commands:
    """Calls commands with the URL and the key of a client."""

    def __init__(self, client: Client) -> None:
        assert client.key is not None
        self._environment = {"AGENTSVC_URL": client.base_url, "AGENTSVC_API_KEY": client.key}

    async def __call__(self, *arguments: str, given: str | None = None) -> Result:
        def call() -> Result:
            return CliRunner(env=self._environment).invoke(cli, arguments, input=given)

        return await asyncio.to_thread(call)

    async def good(self, *arguments: str, given: str | None = None) -> str:
        result = await self(*arguments, given=given)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.good(*arguments, "--json"))


@pytest.fixture
async def commands(client: Client) -> Commands:
    return Commands(client)


async def test_conversations_are_listed_shown_exported_and_deleted(
    commands: Commands, client: Client, tmp_path: Path
) -> None:
    conversation_id = await client.start_conversation("please work")
    await client.wait_for_execution(conversation_id, "finished")
    head, row = (await commands.good("conversations", "list")).splitlines()
    assert head.split()[:3] == ["ID", "STATE", "COST"]
    assert row.split()[:2] == [conversation_id, "finished"]
    assert [one["id"] for one in await commands.json("conversations", "list")] == [conversation_id]
    shown = await commands.good("conversations", "show", conversation_id[:12])
    assert "finished" in shown
    file = tmp_path / "talk.zip"
    await commands.good("conversations", "export", conversation_id, "--output", str(file))
    assert file.read_bytes().startswith(b"PK")
    refused = await commands("conversations", "delete", conversation_id)
    assert (refused.exit_code, "--yes" in refused.stderr) == (1, True)
    await commands.good("conversations", "delete", conversation_id, "--yes")
    assert await commands.json("conversations", "list") == []
    gone = await commands("conversations", "show", conversation_id)
    assert gone.exit_code == 1
    assert gone.stdout == ""
    assert "hint: run `agentsvc conversations list`" in gone.stderr


async def test_why_an_agent_has_stopped_is_shown(commands: Commands, client: Client) -> None:
    conversation_id = await client.start_conversation("[script:refused] please work")
    await client.wait_for_execution(conversation_id, "error")
    shown = await commands.good("conversations", "show", conversation_id)
    assert "The model answered 401" in shown.rpartition("please work")[2]


async def test_a_sandbox_that_failed_is_started_again_as_the_hint_says(
    commands: Commands, client: Client, fake_world: FakeWorld
) -> None:
    conversation_id = await client.start_conversation("please work")
    await client.wait_for_execution(conversation_id, "finished")
    [sandbox] = await commands.json("sandboxes", "list")
    fake_world.end(sandbox["id"])
    await client.wait_for_sandbox(sandbox["id"], "ERROR")
    refused = await commands("conversations", "send", conversation_id, "and then?")
    assert refused.exit_code == 1
    assert "is not running: error" in refused.stderr
    assert f"`agentsvc sandboxes resume {sandbox['id']}`" in refused.stderr
    await commands.good("sandboxes", "resume", sandbox["id"])
    await client.wait_for_sandbox(sandbox["id"], "RUNNING")
    await commands.good("conversations", "send", conversation_id, "and then?")


async def test_a_message_is_sent_and_followed(commands: Commands, client: Client) -> None:
    conversation_id = await client.start_conversation("please work")
    await client.wait_for_execution(conversation_id, "finished")
    said = await commands.good("conversations", "send", conversation_id, "and then?", "--follow")
    assert "and then?" in said
    assert "please work" not in said
    assert "is finished" in said


async def test_a_paused_agent_goes_on_and_so_does_its_sandbox(
    commands: Commands, client: Client, fake_agent: FakeAgent
) -> None:
    done = CommandResult(exit_code=0, stdout="done", stderr="")
    fake_agent.on_command("sleep", done, seconds=20)
    conversation_id = await client.start_conversation("[script:run]\n$ sleep 20")
    await client.wait_for_execution(conversation_id, "running")
    await commands.good("conversations", "pause", conversation_id, "--now")
    await client.wait_for_execution(conversation_id, "paused")
    [sandbox] = await commands.json("sandboxes", "list")
    assert "session_api_key" not in sandbox
    await commands.good("sandboxes", "pause", sandbox["id"][:6])
    await client.wait_for_sandbox(sandbox["id"], "PAUSED")
    await commands.good("conversations", "resume", conversation_id)
    await client.wait_for_execution(conversation_id, "finished")
    logs = await commands("sandboxes", "logs", sandbox["id"])
    assert (logs.exit_code, logs.stderr) == (0, "")
    assert sandbox["id"] in await commands.good("sandboxes", "show", sandbox["id"])
    assert (await commands("sandboxes", "delete", "", "--yes")).exit_code == 1
    await commands.good("sandboxes", "delete", sandbox["id"], "--yes")


async def test_settings_are_set_and_read_by_their_names(commands: Commands) -> None:
    await commands.good("settings", "set", "llm_model", "openai/other")
    await commands.good("settings", "set", "conversation_settings.max_iterations", "77")
    await commands.good("settings", "set", "llm_api_key", given="sk-123\n")
    assert await commands.good("settings", "get", "llm_model") == "openai/other\n"
    listed = await commands.good("settings", "get")
    assert "conversation_settings.max_iterations = 77\n" in listed
    assert "llm_api_key_set = true\n" in listed
    assert "sk-123" not in listed
    await commands.good("settings", "set", "llm_api_key", "null")
    assert "llm_api_key_set = false\n" in await commands.good("settings", "get")
    assert (await commands("settings", "get", "llm_modle")).exit_code == 1
    for key in ("llm_modle", "agent_settings.llm.temperature_"):
        unknown = await commands("settings", "set", key, "1")
        assert (unknown.exit_code, f"there is no setting `{key}`" in unknown.stderr) == (1, True)
    await commands.good("settings", "set", "agent_settings.mcp_config", '{"a": {"command": "b"}}')
    await commands.good("settings", "set", "agent_settings_diff", '{"llm": {"temperature": 1}}')
    await commands.good("settings", "set", "agent_settings.llm.temperature", "null")
    # Some are not shown while another kind of agent is in use.
    await commands.good("settings", "set", "agent_settings.acp_server", "gemini-cli")
    await commands.good("settings", "set", "agent_settings.agent_kind", "acp")
    await commands.good("settings", "set", "agent_settings.llm.temperature", "0.5")
    for value in ("many", "NaN", "1e999"):
        refused = await commands("settings", "set", "max_iterations", value)
        assert (refused.exit_code, "max_iterations" in refused.stderr) == (1, True)


async def test_secrets_are_kept_listed_and_forgotten(commands: Commands) -> None:
    await commands.good("secrets", "set", "DEPLOY_KEY", "--description", "staging", given="v1\n")
    listed = await commands.good("secrets", "list")
    assert listed.splitlines()[1].split() == ["DEPLOY_KEY", "staging"]
    await commands.good("secrets", "delete", "DEPLOY_KEY")
    gone = await commands("secrets", "delete", "DEPLOY_KEY")
    assert (gone.exit_code, gone.stdout) == (1, "")


async def test_the_server_beside_a_command_needs_neither_url_nor_key(
    service: Service, client: Client
) -> None:
    beside = ["--data-dir", str(service.data_dir)]
    nobody = await asyncio.to_thread(CliRunner().invoke, cli, ["sandboxes", "list", *beside])
    assert nobody.exit_code == 1
    assert "hint: start one with `agentsvc serve`" in nobody.stderr
    (service.data_dir / "url").write_text(f"{client.base_url}\n")
    with lock_data_dir(service.data_dir):
        other = await asyncio.to_thread(CliRunner().invoke, cli, ["secrets", "list", *beside])
        assert "hint: start one with `agentsvc serve`" in other.stderr, (
            "a former server got the key"
        )
        (service.data_dir / "url").write_text(f"{client.base_url}\n")
        for key in ("", "asvc_no-longer-valid"):
            if key:
                (service.data_dir / "command-key").write_text(key)
            found = await asyncio.to_thread(CliRunner().invoke, cli, ["secrets", "list", *beside])
            assert found.exit_code == 0, found.output
            assert (service.data_dir / "command-key").stat().st_mode & 0o777 == 0o600


async def test_what_stands_in_the_way_of_a_command_is_said(client: Client) -> None:
    async def told(*server: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["secrets", "list", *server])
        assert (result.exit_code, result.stdout) == (1, "")
        return result.stderr

    assert "no key for" in await told("--url", client.base_url)
    assert "--key" in await told("--url", client.base_url, "--key", "x" * 40)
    assert "is not a server URL" in await told("--url", "ftp://x", "--key", "x")
    assert "no response from" in await told("--url", "http://127.0.0.1:1", "--key", "x")


class Run:
    """`agentsvc run` as a process of its own."""

    def __init__(self, client: Client, home: Path) -> None:
        self._client = client
        self._home = home
        self.process: asyncio.subprocess.Process | None = None
        self.shown = ""

    async def start(self, *arguments: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentsvc", "run", *arguments),
            *("--url", self._client.base_url, "--key", str(self._client.key)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"HOME": str(self._home), "NO_COLOR": "1"},
        )

    async def read_until(self, text: str) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.shown += line.decode()
            if text in line.decode():
                return
        raise AssertionError(f"no `{text}` in: {self.shown}")

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self) -> int:
        assert self.process is not None
        self.shown += (await self.process.communicate())[0].decode()
        assert self.process.returncode is not None
        return self.process.returncode


@pytest.fixture
async def run(client: Client, tmp_path: Path) -> AsyncIterator[Run]:
    run = Run(client, tmp_path)
    yield run
    if run.process is not None and run.process.returncode is None:
        run.process.kill()
        await run.process.communicate()


async def test_a_run_shows_the_agent_and_its_exit_code_tells_success(run: Run) -> None:
    await run.start("please work", "--delete")
    assert await run.end() == 0
    assert "please work" in run.shown
    assert "is finished" in run.shown
    assert "\x1b" not in run.shown


async def test_a_run_for_programs_is_json_line_by_line(run: Run, client: Client) -> None:
    await run.start("please work", "--json", "--title", "mine")
    assert await run.end() == 0
    records = [json.loads(line) for line in run.shown.splitlines() if line.startswith("{")]
    assert {one["type"] for one in records} == {"start", "event", "result"}
    assert records[-1]["outcome"] == "finished"
    [known] = (await client.get("/api/v1/app-conversations/search")).json()["items"]
    assert known["id"] == records[-1]["conversation_id"]
    assert known["title"] == "mine"


async def test_a_conversation_is_forked(commands: Commands, client: Client) -> None:
    conversation_id = await client.start_conversation("[script:say] Hello?")
    await client.wait_for_execution(conversation_id, "finished")
    fork = (await commands.good("conversations", "fork", conversation_id[:12])).strip()
    assert fork not in ("", conversation_id)
    assert "[script:say] Hello?" in await commands.good("conversations", "show", fork)
    last = (await client.events(conversation_id))[0]["id"]
    words = ("--title", "Other", "--message", "[script:say] Again", "--until", last)
    made = await commands.json("conversations", "fork", conversation_id, *words)
    assert made["title"] == "Other"
    await client.wait_for_execution(made["id"], "finished")
    for wrong in (("--message", " "), ("--until", "nothing"), ("--title", "x" * 200_001)):
        refused = await commands("conversations", "fork", conversation_id, *wrong)
        assert refused.exit_code == 1, refused.output


async def test_files_of_a_conversation_are_put_back(
    commands: Commands, client: Client, service: Service
) -> None:
    usual = service.config
    sandboxes = msgspec.structs.replace(usual.sandboxes, checkpoints=0)
    service.config = msgspec.structs.replace(usual, sandboxes=sandboxes)
    await service.restart()
    conversation_id = await client.start_conversation("[script:say] Hello?")
    await client.wait_for_execution(conversation_id, "finished")
    refused = await commands("conversations", "rollback", conversation_id, "--yes")
    assert refused.exit_code == 1
    assert "sandboxes.checkpoints" in refused.output
    service.config = usual
    await service.restart()
    conversation_id = await client.start_conversation("[script:say] Hello?")
    await client.wait_for_execution(conversation_id, "finished")
    [kept] = await commands.json("conversations", "checkpoints", conversation_id[:12])
    shown = await commands.good("conversations", "checkpoints", conversation_id)
    assert kept["id"] in shown
    unsure = await commands("conversations", "rollback", conversation_id, given="n\n")
    assert unsure.exit_code == 1
    for named in ((), ("--to", kept["id"])):
        await commands.good("conversations", "rollback", conversation_id, *named, "--yes")
        # The agent is told, and rests.
        await client.wait_for_conversation(conversation_id, _is_at_rest, time_limit=10)
    wrong = await commands("conversations", "rollback", conversation_id, "--to", "0" * 32, "--yes")
    assert wrong.exit_code == 1


def _is_at_rest(conversation: dict[str, Any]) -> bool:
    return not conversation["queued_messages"] and conversation["execution_status"] == "idle"


async def test_a_run_goes_on_after_its_server_was_away(
    run: Run, service: Service, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("sleep", CommandResult(exit_code=0, stdout="", stderr=""), seconds=4)
    await run.start("[script:run]\n$ sleep 4")
    await run.read_until("$ sleep 4")
    await service.stop()
    await asyncio.sleep(1)
    await service.start()
    assert await run.end() == 0
    assert "is finished" in run.shown


async def test_an_interruption_breaks_the_agent_off_and_nobody_asked_means_to_leave(
    run: Run, client: Client, fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("sleep", CommandResult(exit_code=0, stdout="", stderr=""), seconds=60)
    await run.start("[script:run]\n$ sleep 60")
    await run.read_until("$ sleep 60")
    run.send(signal.SIGINT)
    assert await run.end() == 1
    assert "interrupting the agent" in run.shown
    assert "--follow" in run.shown
    [known] = (await client.get("/api/v1/app-conversations/search")).json()["items"]
    await client.wait_for_execution(known["id"], "paused")


async def test_confirmations_are_given_with_yes_and_otherwise_end_a_run_that_nobody_watches(
    run: Run, client: Client
) -> None:
    await client.save_settings(confirmation_mode=True, security_analyzer="none")
    await run.start("[script:run]\n$ echo one", "--yes")
    assert await run.end() == 0, run.shown
    await run.start("[script:run]\n$ echo one")
    assert await run.end() == 1
    assert "standard input is no terminal" in run.shown


async def test_a_run_needs_a_task_that_can_be_done(run: Run) -> None:
    await run.start("x", "--repo", "a/b", "--dir", "/")
    assert await run.end() == 2
    await run.start("x", "--repo", "not a repository")
    assert await run.end() == 1
    assert "error: " in run.shown


async def test_a_run_on_a_server_takes_no_address_of_a_model(run: Run) -> None:
    await run.start("x", "--base-url", "http://127.0.0.1:9/v1")
    assert await run.end() == 1
    assert "--base-url is for a private server" in run.shown


async def test_environments_are_prepared_shown_and_deleted(
    commands: Commands, fake_agent: FakeAgent, tmp_path: Path
) -> None:
    made = CommandResult(exit_code=0, stdout="tools are made", stderr="")
    fake_agent.on_command("make tools", made)
    fake_agent.on_command("make bad", CommandResult(exit_code=2, stdout="no rule", stderr=""))
    setup = tmp_path / "setup.sh"
    setup.write_text("make tools\n")
    create = ("environments", "create", "--wait", "--name")
    good = await commands.json(*create, "tools", "--setup-file", str(setup))
    assert (good["status"], good["is_prepared"]) == ("ready", True)
    failed = await commands(*create, "bad", "--setup", "make bad")
    assert failed.exit_code == 1
    assert "ended with exit code 2" in failed.stderr
    head, *rows = (await commands.good("environments", "list")).splitlines()
    assert head.split()[:4] == ["ID", "NAME", "REPOSITORY", "STATUS"]
    assert [row.split()[1:3] for row in rows] == [["bad", "failed"], ["tools", "ready"]]
    assert len(await commands.json("environments", "list")) == 2
    assert "tools are made" in await commands.good("environments", "show", "tools")
    assert (await commands.json("environments", "show", good["id"][:12]))["id"] == good["id"]
    again = await commands.json("environments", "prepare", "tools", "--wait")
    assert again["status"] == "ready"
    unknown = await commands("environments", "show", "none-such")
    assert unknown.exit_code == 1
    assert "hint: run `agentsvc environments list`" in unknown.stderr
    for name in ("tools", "bad"):
        await commands.good("environments", "delete", name, "--yes")
    assert await commands.json("environments", "list") == []


async def test_environments_get_variables_and_the_files_that_make_them_stale(
    commands: Commands,
) -> None:
    create = ("environments", "create", "--name", "tools", "--setup", "true")
    given = ("--variable", "LEVEL=a=b c", "--variable", "EMPTY=")
    made = await commands.json(*create, *given, "--watched", "*.lock", "--watched", "Makefile")
    assert made["variables"] == {"LEVEL": "a=b c", "EMPTY": ""}
    assert made["watched"] == ["*.lock", "Makefile"]
    usual = await commands.json(*create)
    assert (usual["variables"], usual["watched"]) == ({}, None)
    wrong = await commands(*create, "--variable", "LEVEL")
    assert (wrong.exit_code, "`LEVEL` is not NAME=VALUE" in wrong.stderr) == (2, True)
    unnamed = await commands(*create, "--variable", "=value")
    assert unnamed.exit_code == 1, unnamed.output


async def test_attempts_are_begun_compared_and_chosen(commands: Commands) -> None:
    start = ("attempts", "start", "Do it", "--count", "2", "--model", "openai/other")
    head, titles, *rows = (
        await commands.good(*start, "--test", "true", "--budget", "9", "--wait")
    ).splitlines()
    assert "Do it" in head
    assert " of $9.00" in head
    assert titles.split() == [
        *("NO", "STATUS", "MODEL", "CHANGED", "TESTS", "TIME", "COST", "CONVERSATION")
    ]
    assert [row.split()[:3] for row in rows] == [
        [number, "finished", "openai/other"] for number in ("1", "2")
    ]
    [listed] = await commands.json("attempts", "list")
    assert "2 of 2" in await commands.good("attempts", "list")
    chosen = await commands.json("attempts", "choose", listed["id"][:12], "2", "--yes")
    assert [one["status"] for one in chosen["attempts"]] == ["discarded", "chosen"]
    assert "discarded" in await commands.good("attempts", "show", "Do it")
    source = chosen["attempts"][1]["conversation_id"]
    forks = await commands.json(*start, "--conversation", source[:12], "--title", "Forks")
    assert forks["conversation_id"] == source
    refused = await commands("attempts", "start", "Do it", "--repo", "a/b", "--count", "1")
    assert refused.exit_code == 1
    for name in ("Forks", "Do it"):
        await commands.good("attempts", "delete", name, "--yes")
    assert await commands.json("attempts", "list") == []


async def test_automations_are_made_run_switched_and_deleted(
    commands: Commands, client: Client, tmp_path: Path
) -> None:
    create = ("automations", "create")
    cron = ("--cron", "0 3 * * 1", "--timezone", "Europe/Berlin", "--prompt", "Work.")
    await commands.good(*create, "--name", "nightly", *cron)
    assert (await commands("automations", "delete", "", "--yes")).exit_code == 1
    names = (await commands.good("automations", "template")).split()
    assert names == ["answer", "dependencies", "fix", "review", "triage"]
    for name in names:
        file = tmp_path / f"{name}.toml"
        file.write_text(await commands.good("automations", "template", name))
        made = await commands.json(*create, str(file), "--repository", "a/b", "--disabled")
        assert (made["enabled"], made["repos"][0]["url"]) == (False, "a/b")
    secret = await commands.good(
        *create, "--name", "hook", "--prompt", "x", "--webhook", "--output", "-"
    )
    assert secret.startswith("whsec_")
    listed = await commands.json("automations", "list")
    assert sorted(one["name"] for one in listed)[-2:] == ["hook", "nightly"]
    rows = (await commands.good("automations", "list")).splitlines()
    [row] = [row for row in rows if "nightly" in row]
    assert "cron 0 3 * * 1" in row
    run = await commands.json("automations", "run", "nightly")
    shown = await commands.json("automations", "show", run["automation_id"][:12])
    assert shown["name"] == "nightly"
    assert "nightly" in await commands.good("automations", "show", "nightly")
    [found] = await commands.json("automations", "runs", "nightly")
    assert found["id"] == run["id"]
    assert run["id"] in await commands.good("automations", "runs", "nightly")
    await commands.good("automations", "disable", "nightly")
    assert (await commands.json("automations", "show", "nightly"))["enabled"] is False
    await commands.good("automations", "enable", "nightly")
    await commands.good("automations", "delete", "nightly", "--yes")
    for arguments in (
        ("show", "nightly"),
        ("template", "none"),
        ("create", "--name", "a", "--prompt", "b", "--webhook", "--at", "2099-01-01"),
        ("create", "--name", "a", "--prompt", "b", "--branch", "c"),
        ("create", "--name", "a", "--prompt", "b", "--webhook", "--json", "--output", "c"),
        ("create", "--name", "a"),
    ):
        refused = await commands("automations", *arguments)
        assert refused.exit_code in (1, 2), refused.output
    # No secret comes of it, so nothing goes to the file.
    made = await commands.json(*create, "--name", "a", "--prompt", "b", "--output", "c")
    assert made["trigger"] == {"type": "manual"}
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("name =")
    assert (await commands(*create, str(wrong))).exit_code == 1


async def test_a_secret_in_json_that_standard_output_does_not_take_is_in_a_file(
    client: Client, tmp_path: Path
) -> None:
    words = "automations create --name a --prompt b --webhook --json >/dev/full"
    known = os.environ | {"AGENTSVC_URL": client.base_url, "AGENTSVC_API_KEY": str(client.key)}
    command = f"{sys.executable} -m agentsvc {words}"
    made = await asyncio.create_subprocess_shell(command, cwd=tmp_path, env=known)
    assert await made.wait() == 1
    [file] = [one for one in _files(tmp_path) if one.name.startswith("automation-secret-")]
    assert json.loads(file.read_text())["secret"].startswith("whsec_")


async def test_a_file_of_an_automation_may_have_moments_and_be_wrong(
    commands: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    create = ("automations", "create", str(file))
    for line in ("trigger = { type = 'once', at = 2099-01-01T00:00:00Z }", "repos = ['a/b']"):
        file.write_text(f"name = 'a'\nprompt = 'b'\n{line}", "utf-8-sig")
        await commands.good(*create, "--repository", "a/b")
    for line in ("trigger = 'cron'", "repos = ['a/b']", "timeout = inf"):
        file.write_text(f"name = 'a'\nprompt = 'b'\n{line}")
        refused = await commands(*create)
        assert (refused.exit_code, refused.stderr[:7]) == (1, "error: ")


@pytest.mark.parametrize("provider", ["github", "gitlab", "forgejo", "bitbucket"])
async def test_the_commands_of_the_page_about_issues_work_for_each_host(
    commands: Commands, tmp_path: Path, provider: str
) -> None:
    page = (Path(__file__).parents[2] / "agentsvc/docs/how-to/issues.md").read_text("utf-8")
    lines, shown = page.split("```")[1].split("\n"), ""
    for line in [one for one in lines if one.startswith("agentsvc ")]:
        words = shlex.split(line.replace("github", provider))[1:]
        if words[-1].startswith(">"):
            (tmp_path / words.pop()[1:]).write_text(await commands.good(*words))
            continue
        words = [str(tmp_path / one) if one.endswith(".toml") else one for one in words]
        shown = await commands.good(*words, *(["--output", "-"] if "create" in words else []))
    [made] = await commands.json("automations", "list")
    assert (made["repos"][0]["provider"], made["trigger"]["label"]) == (provider, "agent")
    assert "CONVERSATION" in shown


async def test_the_command_of_the_page_about_issues_stores_a_github_app(
    commands: Commands, tmp_path: Path
) -> None:
    async with AppHost(tmp_path / "git") as host:
        key, secret = tmp_path / "app.pem", tmp_path / "hook.txt"
        key.write_text(host.private_key)
        secret.write_text(f"{HOOK}\n")
        files = ("--private-key", str(key), "--hook-secret", str(secret))
        told = await commands.good("automations", "github-app", APP, *files, "--host", host.url)
        assert "/api/automation/v1/events/" in told
        wrong = await commands("automations", "github-app", "4712", *files, "--host", host.url)
        assert "GitHub knows no App `4712` with this key" in wrong.output


def _files(directory: Path) -> list[Path]:
    return [one for one in directory.rglob("*") if one.is_file()]


async def test_a_login_is_kept_for_other_commands_and_shells_complete_ids(
    client: Client, tmp_path: Path
) -> None:
    conversation_id = await client.start_conversation("[script:say]", title="to be completed")
    kept_in = tmp_path / "config"
    environment = {"XDG_CONFIG_HOME": str(kept_in), "AGENTSVC_URL": "", "AGENTSVC_API_KEY": ""}

    async def call(*arguments: str, given: str = "", **more: str) -> Result:
        runner = CliRunner(env={**environment, **more})
        return await asyncio.to_thread(runner.invoke, cli, arguments, input=given)

    refused = await call("login", client.base_url, "--key", "nobody's")
    assert refused.exit_code == 1, refused.output
    assert _files(kept_in) == []
    done = await call("login", client.base_url, "--key", "-", given=f"{client.key}\n")
    assert done.exit_code == 0, done.output
    assert f"logged in at {client.base_url}" in done.stdout
    [kept] = _files(kept_in)
    assert kept.stat().st_mode & 0o077 == 0
    listed = await call("conversations", "list", "--json", AGENTSVC_URL=f"{client.base_url}/")
    assert [one["id"] for one in json.loads(listed.stdout)] == [conversation_id]
    words = f"agentsvc conversations show {conversation_id[:2]}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": "3", "_AGENTSVC_COMPLETE": "bash_complete"}
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agentsvc",
        env={**os.environ, **environment, **asked},
        stdout=asyncio.subprocess.PIPE,
    )
    found, _ = await program.communicate()
    assert found.decode().split() == [f"plain,{conversation_id[:8]}"]
    assert (await call("logout")).exit_code == 0
    assert _files(kept_in) == []
