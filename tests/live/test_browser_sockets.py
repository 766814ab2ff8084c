"""WebSockets through the gateway in a real browser, on a page that a sandbox serves itself."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from agentsvc.config.schema import GatewayConfig
from tests.http.gateway.steps import Box, boxed, until
from tests.live.chromium import showing

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="function"),
]

REPORT_SECONDS = 90
PAGE = """<!doctype html><script>
const said = [];
const socket = new WebSocket(`ws://${location.host}/ws`, ["chat"]);
socket.binaryType = "arraybuffer";
const words = [
  () => socket.send("gr\\u00fc\\u00dfe"),
  () => socket.send(new Uint8Array([1, 2, 255])),
  () => socket.send("ping me"),
  () => socket.send("x".repeat(300000)),
  () => socket.send("close 4321 because of this"),
];
socket.onmessage = ({data}) => {
  said.push(typeof data === "string" ? data.slice(0, 40) : [...new Uint8Array(data)]);
  words.shift()();
};
socket.onclose = ({code, reason, wasClean}) => {
  said.push([code, reason, wasClean, socket.protocol]);
  const second = new WebSocket(`ws://${location.host}/ws`);
  second.onmessage = () => second.close(4001, "bye");
  second.onclose = () => fetch("/report", {method: "POST", body: JSON.stringify(said)});
};
</script>"""


@pytest_asyncio.fixture(loop_scope="function")
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    async with boxed(tmp_path / "data", GatewayConfig()) as box:
        box.upstream.page = PAGE
        yield box


async def test_a_browser_has_its_websockets_at_the_origin_of_a_work_port(box: Box) -> None:
    port = urlsplit(box.service.url).port
    own = f"http://worker-1-{box.id}.localhost:{port}"
    async with showing(f"{own}/page?session_api_key={box.key}"):
        async with asyncio.timeout(REPORT_SECONDS):
            codes = [await box.upstream.socket_ends.get() for _ in range(2)]
            await until(lambda: box.upstream.seen[-1].raw_path == "/report")
    assert json.loads(box.upstream.seen[-1].body) == [
        "hello",
        "GR\u00dcSSE",
        [255, 2, 1],
        "ponged from the sandbox",
        "X" * 40,
        [4321, "because of this", True, "chat"],
    ]
    assert codes[1] == 4001
    # The page had the key in its address; what it opened had the cookie, which stays here.
    assert not any(seen.all("Cookie") for seen in box.upstream.seen)
