"""The proxy for front ends without a key is closed to pages elsewhere: a real nginx and a real Chromium.

The file that `agentsvc deploy show` prints, with a browser that has the password, and pages of other
origins: under a name of their own, at another port of the proxy's address, in a frame, and by rebinding.
The proxy that the README of the last release had is tried in the same way: there they get through.
"""

from pathlib import Path
from typing import Final

from agentsvc.config.schema import GatewayConfig
from tests.http.gateway.steps import boxed
from tests.live import nginx
from tests.live.test_front_end import (
    BARE,
    EVENT_SOURCE,
    FORM,
    FRAME,
    LIST,
    READ,
    RECIPE,
    SIMPLE_POST,
    SOCKET,
    STREAM,
    Front,
    both,
    fronted,
)
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero


async def _try_pages(front: Front) -> tuple[int, list[str]]:
    """Return how much was tried by pages elsewhere, and what got through."""
    through, tried = [], 0
    for elsewhere in both(front.elsewhere):
        page = await front.visit(elsewhere)
        if await page.evaluate(EVENT_SOURCE, f"{front.url}{STREAM}") != "error":
            through.append("the stream of events is open")
        if await page.evaluate(SOCKET, f"{front.url}{STREAM}") != "error":
            through.append("a WebSocket is open")
        if front.box.id in await page.evaluate(READ, f"{front.url}{LIST}"):
            through.append("answers are read")
        await page.evaluate(FRAME, f"{front.url}/")
        if "front end" in [await frame.title() for frame in page.frames]:
            through.append("the front end is shown in a frame")
        await page.evaluate(SIMPLE_POST, f"{front.url}{front.pause}")
        await page.evaluate(FORM, f"{front.url}{front.pause}")
        await page.wait_for_timeout(500)
        await page.close()
        tried += 6
    bound = front.url.replace("127.0.0.1", "evil.test")
    rebound = await front.context.new_page()
    for path in ("/", LIST):
        answer = await rebound.goto(f"{bound}{path}")
        if answer is not None and answer.status < 400:
            through.append(f"{path} is answered under another name")
        tried += 1
    if front.box.id in await rebound.evaluate(READ, LIST):
        through.append("answers are read under another name")
    if await rebound.evaluate(SOCKET, f"{bound}{STREAM}") != "error":
        through.append("a WebSocket is open under another name")
    passed = [
        f"{method} {path}: {status}" for method, path, status in front.answered() if status < 400
    ]
    through += ["a sandbox was paused"] if await front.is_paused() else []
    # What only counts as tried if the proxy has heard of it.
    return tried + 2, through + [f"passed on: {one}" for one in passed if "POST" in one]


async def _fronted(directory: Path, text: str) -> tuple[int, list[str]]:
    async with boxed(directory, GatewayConfig()) as box, fronted(box, text) as front:
        return await _try_pages(front)


async def run(ground: Ground) -> Outcome:
    if nginx.program() is None:
        raise RuntimeError("nginx is not installed")
    tried, through = await _fronted(ground.place("recipe") / "data", RECIPE.read_text())
    _, before = await _fronted(ground.place("before") / "data", BARE)
    return Outcome(
        did=(
            f"{tried} attempts by pages elsewhere, in Chromium, at the front end's proxy, a real nginx;"
            f" at one that only adds the key {len(before)} of them get through"
        ),
        figures=(
            Figure(what="attempts", value=tried, at_least=10),
            zero("that got through", through),
            Figure(what="that get through without the recipe", value=len(before), at_least=3),
        ),
        problems=tuple(through),
    )


ROW: Final = Row(name="front-end", half=Half.IN, promise="the front ends' proxy", run=run)
