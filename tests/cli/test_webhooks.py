import asyncio
import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from agentsvc.cli import cli
from agentsvc.config.data_directory import DataDirectory
from agentsvc.storage.database import Transaction
from agentsvc.storage.installation import Installation
from tests.plugin_loading import part

if TYPE_CHECKING:
    from webhooks.service import context_of
else:
    context_of = part("webhooks.service").context_of

URL = "https://receiver.example/hook"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    places.database.touch()
    made = run(places.path, "keys", "create", "--output", "-", "--user", "ann")
    assert made.exit_code == 0, made.stderr
    return places.path


def run(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--data-dir", str(data_dir)])


def webhooks(data_dir: Path, *arguments: str) -> Result:
    return run(data_dir, "webhooks", *arguments)


def add(data_dir: Path, *options: str) -> str:
    result = webhooks(data_dir, "add", URL, "--user", "ann", *options)
    assert result.exit_code == 0, result.stderr
    return result.stderr.split()[1]


def queue(data_dir: Path, webhook_id: str, *states: str) -> None:
    """Put deliveries of these states into the queue."""

    async def body(tx: Transaction) -> None:
        for state in states:
            await tx.run(
                "INSERT INTO webhook_deliveries (id, subscription_id, lane, type, seq, state,"
                " reason, settled_at) VALUES (:state, :webhook, 'talk', 'conversation.event', 7,"
                " :state, 'for a reason', CASE :state WHEN 'pending' THEN NULL ELSE '2030-01-01T00:00:00Z' END)",
                {"state": state, "webhook": webhook_id},
            )

    async def opened() -> None:
        installation = await Installation.open(DataDirectory(path=data_dir))
        try:
            await installation.database.write(body)
        finally:
            await installation.close()

    asyncio.run(opened())


def change(data_dir: Path, sql: str) -> None:
    async def opened() -> None:
        installation = await Installation.open(DataDirectory(path=data_dir))
        try:
            await installation.database.write(lambda tx: tx.run(sql))
        finally:
            await installation.close()

    asyncio.run(opened())


def secret_of(data_dir: Path, webhook_id: str) -> str:
    async def opened() -> str:
        installation = await Installation.open(DataDirectory(path=data_dir))
        try:
            row = await installation.database.one("SELECT sealed FROM webhook_subscriptions")
            assert row is not None
            return installation.vault.unseal(row["sealed"], context_of(webhook_id)).decode()
        finally:
            await installation.close()

    return asyncio.run(opened())


def test_a_new_webhook_has_its_secret_as_all_there_is_on_stdout(data_dir: Path) -> None:
    result = webhooks(
        data_dir, "add", URL, "--user", "ann", "--description", "build", "--output", "-"
    )
    webhook_id = result.stderr.split()[1]
    expected = f"webhook {webhook_id} of user `ann`, its secret, shown only this once:\n"
    assert (result.exit_code, result.stderr) == (0, expected)
    assert result.stdout.startswith("whsec_")
    assert secret_of(data_dir, webhook_id) == result.stdout.strip()


@pytest.mark.parametrize(
    ("options", "kinds", "changes"),
    [
        ([], "all", "conversation,sandbox,start_task"),
        (["--kind", "MessageEvent", "--kind", "ErrorEvent"], "MessageEvent,ErrorEvent", "conv"),
        (["--no-events", "--change", "sandbox"], "none", "sandbox"),
        (["--no-changes"], "all", "none"),
    ],
)
def test_the_list_says_what_is_told(
    data_dir: Path, options: list[str], kinds: str, changes: str
) -> None:
    webhook_id = add(data_dir, *options)
    head, line = webhooks(data_dir, "list").stdout.splitlines()
    assert head.split() == ["ID", "USER", "URL", "KINDS", "CHANGES", "STATE"]
    cells = line.split()
    assert cells[:4] == [webhook_id, "ann", URL, kinds]
    assert cells[4].startswith(changes)
    assert cells[5] == "active"
    [told] = json.loads(webhooks(data_dir, "list", "--json").stdout)
    assert (told["id"], told["user"], told["state"]) == (webhook_id, "ann", "active")


def test_a_removed_webhook_is_not_listed(data_dir: Path) -> None:
    webhook_id = add(data_dir)
    result = webhooks(data_dir, "remove", webhook_id)
    assert (result.exit_code, result.stderr) == (0, f"webhook {webhook_id} is removed\n")
    assert len(webhooks(data_dir, "list").stdout.splitlines()) == 1


def test_a_webhook_is_disabled_and_enabled(data_dir: Path) -> None:
    webhook_id = add(data_dir)
    for action, state in (("disable", "disabled"), ("enable", "active")):
        result = webhooks(data_dir, action, webhook_id)
        assert (result.exit_code, result.stderr) == (0, f"webhook {webhook_id} is {action}d\n")
        assert webhooks(data_dir, "list").stdout.splitlines()[1].split()[5:] == [state]


def test_the_list_says_why_a_receiver_had_its_webhook_disabled(data_dir: Path) -> None:
    webhook_id = add(data_dir)
    change(data_dir, "UPDATE webhook_subscriptions SET is_enabled = 0, disabled_reason = 'gone'")
    assert webhooks(data_dir, "list").stdout.splitlines()[1].endswith("disabled: gone")
    assert webhooks(data_dir, "enable", webhook_id).exit_code == 0
    assert webhooks(data_dir, "list").stdout.splitlines()[1].endswith("active")


def test_where_there_is_no_terminal_a_secret_goes_to_a_file_of_its_owner(data_dir: Path) -> None:
    webhook_id = add(data_dir)
    for result in (webhooks(data_dir, "rotate", webhook_id), webhooks(data_dir, "list")):
        assert "whsec_" not in result.output
    files = sorted(data_dir.glob("webhook-secret-*"))
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert secret_of(data_dir, webhook_id) in [file.read_text().strip() for file in files]


def test_a_new_secret_is_all_there_is_on_stdout(data_dir: Path) -> None:
    webhook_id = add(data_dir)
    former = secret_of(data_dir, webhook_id)
    result = webhooks(data_dir, "rotate", webhook_id, "--output", "-")
    expected = f"webhook {webhook_id}, the former secret signs as well until "
    assert (result.exit_code, result.stderr.startswith(expected)) == (0, True)
    assert secret_of(data_dir, webhook_id) == result.stdout.strip()
    assert result.stdout.strip() != former


def test_deliveries_are_listed_and_replayed(data_dir: Path) -> None:
    webhook_id = add(data_dir)
    queue(data_dir, webhook_id, "delivered", "failed")
    lines = webhooks(data_dir, "deliveries", webhook_id).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "failed", "delivered"]
    assert "for a reason" in lines[1]
    told = json.loads(webhooks(data_dir, "deliveries", webhook_id, "--json").stdout)
    assert [one["state"] for one in told] == ["failed", "delivered"]
    failed = webhooks(data_dir, "deliveries", webhook_id, "--state", "failed").stdout
    assert len(failed.splitlines()) == 2
    again = webhooks(data_dir, "replay", webhook_id, "--failed")
    assert (again.exit_code, again.stderr) == (0, "deliveries to repeat: 1\n")
    assert webhooks(data_dir, "replay", webhook_id, "delivered").exit_code == 0
    waiting = webhooks(data_dir, "deliveries", webhook_id, "--state", "pending").stdout
    assert len(waiting.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["add", "http://127.0.0.1/", "--user", "ann"], 1, "host should be a public address"),
        (["add", URL, "--user", "eve"], 1, "there is no user `eve`"),
        (["add", URL, "--user", "ann", "--kind", "A", "--no-events"], 2, "excludes --kind"),
        (
            ["add", URL, "--user", "ann", "--change", "sandbox", "--no-changes"],
            2,
            "excludes --change",
        ),
        (["remove", "x"], 1, "there is no webhook x"),
        (["deliveries", "x"], 1, "there is no webhook x"),
        (["enable", "x"], 1, "there is no webhook x"),
        (["disable", "x"], 1, "there is no webhook x"),
        (["rotate", "x"], 1, "there is no webhook x"),
        (["replay", "x", "y"], 1, "there is no webhook x"),
        (["replay", "x"], 2, "name a delivery"),
        (["replay", "x", "y", "--failed"], 2, "name a delivery"),
    ],
)
def test_what_cannot_be_done_is_said(
    data_dir: Path, arguments: list[str], code: int, message: str
) -> None:
    result = webhooks(data_dir, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_a_delivery_that_is_not_there_is_not_replayed(data_dir: Path) -> None:
    result = webhooks(data_dir, "replay", add(data_dir), "x")
    assert (result.exit_code, result.stderr) == (1, "error: no such delivery\n")


def test_a_private_address_is_taken_where_that_is_allowed(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSVC_WEBHOOKS__ALLOW_PRIVATE", "true")
    result = webhooks(data_dir, "add", "http://127.0.0.1:9/", "--user", "ann")
    assert result.exit_code == 0
