"""What an OpenHands server has kept is taken over, and found in the API of both generations."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentsvc.base.values import parse_uuid
from agentsvc.cli import cli
from agentsvc.http.keys import KEYRING, SETTINGS
from agentsvc.settings.fields import Settings
from tests.new_data import lay_database
from tests.openhands_data import (
    NEWER_ID,
    NEWER_SETTINGS,
    OLDER_ID,
    OLDER_SETTINGS,
    SECRETS,
    lay_newer,
    lay_older,
    recorded,
    sealed,
    write,
)
from tests.service import Client, Service

V0 = "/api/conversations"
V1 = "/api/v1/app-conversations"
NEWER = NEWER_ID.replace("-", "")
IMPORT = ("import", "openhands")


class Ours:
    """An installation here, whose server may run, and the data of the other server."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.path = directory / "theirs"
        lay_database(self.data)
        self.path.mkdir()

    def call(self, *words: str, code: int = 0) -> str:
        result = CliRunner(env={"NO_COLOR": "1"}).invoke(
            cli, [*words, "--data-dir", str(self.data)]
        )
        assert result.exit_code == code, result.output
        return result.output

    def take(self, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
        """Import what there is and return the report by name."""
        result = CliRunner(env={"NO_COLOR": "1"}).invoke(
            cli,
            [*IMPORT, str(self.path), "--json", "--data-dir", str(self.data), *words],
        )
        assert result.exit_code == code, result.output
        return {item["name"]: item for item in json.loads(result.stdout)}


@pytest.fixture
def theirs(tmp_path: Path) -> Ours:
    """Return both, for tests with a server, which makes the installation."""
    return Ours(tmp_path)


@pytest.fixture
def ours(theirs: Ours) -> Ours:
    """Return both, with an administrator here."""
    theirs.call("keys", "create", "--user", "admin", "--role", "admin")
    return theirs


async def stored_settings(service: Service) -> Settings:
    user_id = await service.app[KEYRING].find_user("admin")
    return await service.app[SETTINGS].get(user_id or "")


async def test_conversations_of_both_generations_are_read_in_both(
    theirs: Ours, client: Client
) -> None:
    lay_older(theirs.path)
    lay_newer(theirs.path)
    report = await asyncio.to_thread(theirs.take)
    assert [report[name]["outcome"] for name in (OLDER_ID, NEWER)] == ["imported", "imported"]
    assert [report[name]["events"] for name in (OLDER_ID, NEWER)] == [11, 12]

    older = (await client.get(f"{V0}/{OLDER_ID}")).json()
    shown = {name: older[name] for name in ("title", "selected_repository", "status")}
    assert shown == {
        "title": "An older one",
        "selected_repository": "acme/older",
        "status": "ARCHIVED",
    }
    assert older["conversation_version"] == "V0"
    assert older["created_at"].startswith("2026-11-20T19:35:00")
    events = (await client.get(f"{V0}/{OLDER_ID}/events?limit=100")).json()["events"]
    assert events == recorded("older-run-finish")
    trajectory = (await client.get(f"{V0}/{NEWER}/trajectory")).json()["trajectory"]
    assert {"run", "finish"} <= {event.get("action") for event in trajectory}

    found = await client.conversation(NEWER_ID)
    wanted = {
        "title": "A newer one",
        "selected_repository": "acme/newer",
        "selected_branch": "main",
        "git_provider": "gitlab",
        "trigger": "slack",
        "pr_number": [7],
        "llm_model": "openai/newer",
        "tags": {"team": "blue"},
        "public": False,
        "sandbox_status": "MISSING",
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["metrics"]["accumulated_cost"] == 0.25
    assert found["updated_at"].startswith("2026-11-20T19:15:08.059656")
    stored = await client.events(NEWER_ID)
    assert stored == recorded("run-finish")
    kinds = [event["kind"] for event in await client.events(OLDER_ID)]
    assert [kind for kind in kinds if kind != "ConversationStateUpdateEvent"] == [
        "SystemPromptEvent",
        "MessageEvent",
        "ActionEvent",
        "ObservationEvent",
        "ActionEvent",
    ]


async def test_what_was_imported_is_not_there_to_talk_to_and_says_what_to_do(
    theirs: Ours, client: Client
) -> None:
    lay_older(theirs.path, selected_repository=None, selected_branch=None)
    await asyncio.to_thread(theirs.take)
    await client.save_settings()
    answers = [
        await client.post(f"{V0}/{OLDER_ID}/message", json={"message": "Go on"}),
        await client.post(
            f"{V1}/{OLDER_ID}/send-message",
            json={"role": "user", "content": [{"type": "text", "text": "Go on"}]},
        ),
    ]
    assert [answer.status for answer in answers] == [410, 410]
    assert all("fork the conversation to continue" in answer.text for answer in answers)

    task = (await client.post(f"{V1}/{OLDER_ID}/fork")).json()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    fork = ended["app_conversation_id"]
    events = (await client.get(f"{V0}/{parse_uuid(fork)}/events?limit=100")).json()["events"]
    assert events[:11] == recorded("older-run-finish")
    assert [event["id"] for event in events] == list(range(len(events)))


async def test_settings_of_the_first_generation_are_sealed_here(
    theirs: Ours, service: Service
) -> None:
    client = await service.make_client()
    write(theirs.path / "settings.json", OLDER_SETTINGS)
    write(theirs.path / "secrets.json", SECRETS)
    report = await asyncio.to_thread(theirs.take)
    assert report["settings.json"]["notes"] == ["`sandbox_api_key` was masked before it was stored"]
    assert [report[name]["outcome"] for name in ("github", "DEPLOY_KEY")] == ["imported"] * 2
    assert b"sk-older" not in (theirs.data / "agentsvc.db").read_bytes()

    found = (await client.get("/api/settings")).json()
    same = ("language", "max_iterations", "confirmation_mode", "llm_model", "git_user_name")
    assert {name: found[name] for name in same} == {name: OLDER_SETTINGS[name] for name in same}
    assert found["llm_api_key_set"]
    assert found["provider_tokens_set"] == {"github": None}
    stored = await stored_settings(service)
    assert stored.llm_api_key is not None
    assert stored.llm_api_key.reveal() == "sk-older"
    names = (await client.get("/api/secrets")).json()["custom_secrets"]
    assert names == [{"name": "DEPLOY_KEY", "description": "for deploys"}]


async def test_settings_of_the_second_generation_are_opened_with_its_keys(
    theirs: Ours, service: Service
) -> None:
    client = await service.make_client()
    write(theirs.path / ".keys", [{"id": "k", "key": "jwt-1", "active": True}])
    llm = {**NEWER_SETTINGS["agent_settings"]["llm"], "api_key": sealed("sk-opened", "jwt-1")}  # type: ignore[index]  # it is a map
    agent = {**NEWER_SETTINGS["agent_settings"], "llm": llm}  # type: ignore[dict-item]  # it is a map
    write(theirs.path / "settings.json", {**NEWER_SETTINGS, "agent_settings": agent})
    write(
        theirs.path / "secrets.json",
        {
            "custom_secrets": {
                "OPENED": {"secret": sealed("opened", "jwt-1"), "description": ""},
                "CLOSED": {"secret": sealed("closed", "another"), "description": ""},
            }
        },
    )
    report = await asyncio.to_thread(theirs.take, code=1)
    assert report["CLOSED"]["notes"] == ["is encrypted, and its key is missing"]
    assert report["OPENED"]["outcome"] == "imported"

    stored = await stored_settings(service)
    assert stored.llm_api_key is not None
    assert stored.llm_api_key.reveal() == "sk-opened"
    own = (await client.get("/api/v1/settings")).json()
    assert own["llm_model"] == "openai/nested"
    assert (own["language"], own["max_iterations"], own["condenser_max_size"]) == ("fr", 33, 90)
    assert own["agent_settings"]["llm"]["temperature"] == 0.25
    assert own["agent_settings"]["mcp_config"]["files"]["command"] == "mcp-files"
    assert own["llm_profiles"]["profiles"]["fast"]["model"] == "openai/fast"


def test_a_second_run_adds_nothing_and_what_is_set_here_stays(ours: Ours) -> None:
    lay_older(ours.path)
    lay_newer(ours.path)
    write(ours.path / "settings.json", OLDER_SETTINGS)
    write(ours.path / "secrets.json", SECRETS)
    assert {item["outcome"] for item in ours.take("--dry-run").values()} == {"imported"}
    assert {item["outcome"] for item in ours.take().values()} == {"imported"}
    before = (ours.data / "agentsvc.db").read_bytes()
    assert {item["outcome"] for item in ours.take().values()} == {"present"}
    assert (ours.data / "agentsvc.db").read_bytes() == before

    write(ours.path / "settings.json", {**OLDER_SETTINGS, "llm_model": "openai/another"})
    [settings] = [item for item in ours.take().values() if item["kind"] == "settings"]
    assert "`llm_model` is set here, and stays" in settings["notes"]


def test_a_dry_run_stores_nothing_and_the_report_is_for_people(ours: Ours) -> None:
    lay_older(ours.path)
    shown = ours.call("import", "openhands", str(ours.path), "--dry-run")
    [line] = [line for line in shown.splitlines() if line.startswith("conversation")]
    assert line.split()[1:5] == [OLDER_ID, "imported", "11", "An"]
    assert "1 would be imported, 0 are here already, 0 skipped" in shown
    assert ours.take()[OLDER_ID]["outcome"] == "imported"


def test_data_of_users_comes_one_user_at_a_time(ours: Ours) -> None:
    lay_older(ours.path, "a" * 32, parent="users/u1/conversations")
    lay_newer(ours.path, NEWER_ID, parent="u2/v1_conversations", user_id="u2")
    ours.call("users", "create", "ann")
    assert ours.take() == {}
    shown = ours.call("import", "openhands", str(ours.path))
    assert "users whose data is not imported: u1, u2" in shown
    assert ours.take("--of", "u1", "--user", "ann")["a" * 32]["outcome"] == "imported"
    assert ours.take("--of", "u2")[NEWER]["outcome"] == "imported"
    belongs = ours.take("--of", "u2", "--user", "ann", code=1)[NEWER]
    assert belongs["notes"] == ["belongs to another user here"]


def test_a_name_that_is_no_uuid_becomes_the_users_own_name_for_it(ours: Ours) -> None:
    lay_older(ours.path, "my-first-try")
    assert ours.take()["my-first-try"]["outcome"] == "imported"
    assert ours.take()["my-first-try"]["outcome"] == "present"


def test_parents_come_first_and_one_that_is_missing_is_told(ours: Ours) -> None:
    child, parent, orphan = ("1" * 32, "2" * 32, "3" * 32)
    lay_newer(ours.path, child, parent_conversation_id=parent)
    lay_newer(ours.path, parent)
    lay_newer(ours.path, orphan, parent_conversation_id="4" * 32)
    report = ours.take()
    assert list(report) == [parent, child, orphan]
    assert report[child]["notes"] == []
    assert report[orphan]["notes"] == ["the conversation it belongs to is not here"]


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_kill_in_the_middle_leaves_whole_conversations_only(ours: Ours) -> None:
    message = recorded("older-run-finish")[2]
    for number in range(6):
        events = [{**message, "id": n, "message": f"{number} {n}"} for n in range(300)]
        lay_older(ours.path, f"{number}" * 32, events)
    words = ["import", "openhands", str(ours.path), "--data-dir", str(ours.data)]
    with subprocess.Popen(
        [sys.executable, "-m", "agentsvc", *words], stdout=subprocess.PIPE
    ) as run:
        wal = ours.data / "agentsvc.db-wal"
        while run.poll() is None and size_of(wal) < 100_000:
            os.sched_yield()
        run.send_signal(signal.SIGKILL)
    with contextlib.closing(sqlite3.connect(ours.data / "agentsvc.db")) as database:
        found = database.execute("SELECT count(*) FROM events GROUP BY conversation_id").fetchall()
    assert set(found) <= {(600,)}
    report = ours.take()
    assert {item["outcome"] for item in report.values()} <= {"imported", "present"}
    with contextlib.closing(sqlite3.connect(ours.data / "agentsvc.db")) as database:
        counts = database.execute(
            "SELECT count(*) FROM events GROUP BY conversation_id ORDER BY conversation_id"
        ).fetchall()
    assert counts == [(600,)] * 6
