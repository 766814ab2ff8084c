"""The commands that talk with agents, on a server with a scripted model."""

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from agentsvc import __version__
from agentsvc.cli import cli
from agentsvc.http.health import INTERFACE_VERSION
from tests.live.client import LiveClient
from tests.live.events import outputs
from tests.live.scripts import WORDS, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def called(client: LiveClient, *words: str, typed: str = "") -> Result:
    """Return what a command has printed, and how it ended."""
    where = ["--url", client.base_url, "--key", str(client.key)]
    return await asyncio.to_thread(CliRunner().invoke, cli, [*words, *where], input=typed)


async def test_what_an_agent_asks_is_confirmed_and_rejected(client: LiveClient) -> None:
    await client.save_settings(confirmation_mode=True, security_analyzer="none")
    conversation_id = await client.start_conversation(run("echo yes", "echo no"))
    short = conversation_id[:12]
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    status = await called(client, "status", "--json")
    told = json.loads(status.stdout)
    assert conversation_id in told["waiting"]
    assert told["version"] == __version__
    assert told["agent_server_version"] == INTERFACE_VERSION
    confirmed = await called(client, "conversations", "confirm", short)
    assert confirmed.exit_code == 0, confirmed.output
    await client.until(conversation_id, lambda events: len(outputs(events)) == 1)
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    rejected = await called(client, "conversations", "reject", short, "--reason", "not that")
    assert rejected.exit_code == 0, rejected.output
    assert "tell it what to do" in rejected.stderr
    await client.wait_for_execution(conversation_id, "idle")
    again = await called(client, "conversations", "reject", short)
    assert again.exit_code == 1
    assert "waits for no confirmation" in again.stderr
    rejections = [
        one
        for one in await client.events(conversation_id)
        if one["kind"] == "UserRejectObservation"
    ]
    assert [one["rejection_reason"] for one in rejections] == ["not that"]


async def test_what_was_said_is_shown_and_an_empty_message_is_refused(client: LiveClient) -> None:
    conversation_id = await client.start_conversation("[script:say]")
    await client.wait_for_execution(conversation_id, "finished")
    shown = await called(client, "conversations", "show", conversation_id[:12])
    assert shown.exit_code == 0, shown.output
    assert "[script:say]" in shown.stdout
    assert "Hello." in shown.stdout
    empty = await called(client, "conversations", "send", conversation_id[:12], "  ")
    assert empty.exit_code == 1
    assert "the message is empty" in empty.stderr
    followed = await called(client, "conversations", "follow", conversation_id[:12])
    assert followed.exit_code == 0, followed.output
    assert f"#/c/{conversation_id}" in followed.stderr
    assert followed.stderr.count("dollars") == 1
    address = await called(client, "open", conversation_id[:12], "--print")
    assert address.stdout == f"{client.base_url}/#/c/{conversation_id}\n"


async def test_a_chat_takes_messages_and_orders(client: LiveClient) -> None:
    typed = "/status\n/nonsense\n[script:words]\n"
    conversation_id = await client.start_conversation("[script:say]")
    await client.wait_for_execution(conversation_id, "finished")
    talked = await called(client, "chat", "--id", conversation_id[:12], typed=typed)
    assert talked.exit_code == 0, talked.output
    assert "finished, " in talked.stderr
    assert "unknown command `/nonsense`" in talked.stderr
    await client.wait_for_execution(conversation_id, "finished")
    await client.until(conversation_id, lambda events: WORDS in json.dumps(events))
