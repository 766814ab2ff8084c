"""Tool servers (MCP) that do not start, on the real agent server."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.client import LiveClient
from tests.live.events import errors, outputs, states
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_tool_server_that_does_not_start_is_told_and_the_others_work(
    client: LiveClient, sandbox_id: str
) -> None:
    program = Path(__file__).with_name("tool_server.py").read_text()
    bad = (
        "import os, sys; print('first', file=sys.stderr); sys.exit('no key: ' + os.environ['KEY'])"
    )
    config: dict[str, Any] = {
        "stdio_servers": [
            {"name": "bad", "command": sys.executable, "args": ["-c", bad], "env": {"KEY": "hide"}},
            {"name": "gone", "command": "no-such-program"},
            {
                "name": "sums",
                "command": sys.executable,
                "args": ["-c", program],
                "env": {"GREETING": "The sum is"},
            },
        ],
        "shttp_servers": ["http://127.0.0.1:9/mcp"],
    }
    await client.save_settings(mcp_config=config)
    for message in (run("echo on"), None):
        body = {"sandbox_id": sandbox_id}
        task = await client.start_task(message, **body)
        ended = await client.end_of_start(task["id"])
        assert ended["status"] == "READY"
        conversation_id = ended["app_conversation_id"]
        told = [one["detail"] for one in errors(await client.events(conversation_id))]
        by_name = {text.split("`")[1]: text for text in told}
        assert sorted(by_name) == ["bad", "gone", "shttp_0"]
        assert by_name["bad"].endswith(
            "first\nno key: **********\nThe program ended with exit status 1"
        )
        assert "no-such-program" in by_name["gone"]
        assert "All connection attempts failed" in by_name["shttp_0"]
        assert ended["detail"] == "\n".join(told)
        if message:
            await client.wait_for_execution(conversation_id, "finished")
            assert outputs(await client.events(conversation_id)) == ["on"]
            history = await client.history(conversation_id)
            assert states(history)[-1] == "finished"
            assert sum(one.get("observation") == "error" for one in history) == 3
