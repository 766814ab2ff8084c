"""The published TypeScript client: its client of the server, and of the agent server in a sandbox."""

import pytest

from agentsvc.accounts.keys import Role
from tests.live.client import PATIENCE
from tests.live.clients.published import Client
from tests.live.console.users import new_user
from tests.live.installation import Installation, eventually
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_the_typescript_client_does_its_whole_work(
    javascript: Client, shared: Installation
) -> None:
    # A user of its own: what other tests have saved, and another try of this, would be seen, too.
    client = await new_user(shared, Role.ADMIN)
    await client.save_settings()
    seen = await javascript.run(
        "typescript.mjs",
        url=shared.url,
        key=str(client.key),
        llm={"base_url": client.model.url, "api_key": client.model.key.reveal()},
        text=run("echo hello >a.txt"),
        more=run("echo streamed"),
        last=run("echo last"),
        patience=PATIENCE,
    )
    assert seen["auth"] == "bearer"
    assert seen["settings"] == [77, "de", "openai/scripted", True]
    assert seen["sections"] > 1
    assert seen["profiles"] == ["second"]
    assert seen["profile"] == "openai/scripted"
    assert seen["secrets"] == ["B_SECRET"]
    assert (seen["models"], seen["providers"]) == (3, 3)

    assert seen["start"] == ["READY", None]
    assert seen["listed"]
    assert seen["shared"] == [True, ["MessageEvent", "ActionEvent", "ObservationEvent"]]
    assert {"MessageEvent", "ActionEvent", "ObservationEvent"} <= set(seen["kinds"])
    assert seen["streamed"] == ["streamed"]
    assert seen["answer"] == DONE

    assert seen["text"] == seen["file"] == "text\n"
    assert seen["size"] == "1000"
    assert seen["changes"] == [["ADDED", "a.txt"], ["ADDED", "b.bin"], ["ADDED", "b.txt"]]
    assert seen["diff"] == {"modified": "hello", "original": ""}
    assert seen["archive"] == "PK"

    assert seen["paused"] == ["PAUSED", None]
    assert seen["own"] == DONE
    assert seen["gone"] is None
    assert seen["left"] == [0, 0]
    assert await client.events(seen["id"]) == []
    directory = shared.sandbox_dir(seen["sandbox_id"])
    await eventually(lambda: not directory.exists(), "its sandbox is removed")
