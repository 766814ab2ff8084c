"""The published clients of socket.io at the socket of the older generation."""

import pytest

from tests.live.client import PATIENCE, LiveClient
from tests.live.clients.published import Client
from tests.live.installation import Installation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_python_socketio_takes_part_in_a_conversation(
    python_socketio: Client, client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    await take_part(python_socketio, "socketio_v0.py", client, shared, sandbox_id)


async def test_javascript_socketio_takes_part_in_a_conversation(
    javascript: Client, client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    await take_part(javascript, "socketio_v0.mjs", client, shared, sandbox_id)


async def take_part(
    published: Client, program: str, client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    name = await client.start_conversation(run("echo first"), sandbox_id=sandbox_id)
    await client.wait_for_execution(name, "finished")
    seen = await published.run(
        program,
        url=shared.url,
        key=shared.key.reveal(),
        conversation_id=name,
        text=run("echo second"),
        # It is paused in the first of them.
        slow=run("sleep 10; echo third", "echo fourth"),
        patience=PATIENCE,
    )
    assert seen["wrong_key"] == "invalid_session_api_key"
    assert seen["unknown"] is not None
    assert seen["replayed"] == ["first"]
    assert seen["live"] == ["second"]
    assert seen["echoed"] == [run("echo second")]
    assert seen["resumed"] == ["third", "fourth"]
    ids = seen["ids"]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {event["id"] for event in await client.history(name)}
    # All but the last state of the agent are left out of what is sent again.
    assert set(seen["missed"]) <= set(ids[-2:])
    assert seen["missed"][-1] == ids[-1]
