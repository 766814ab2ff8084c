"""Makes the pictures of the README: a recorded terminal session, and a picture of the console.

Both show one conversation of a real agent in a real sandbox; only the language model plays a script.
Run as `python -m tests.docs.record`, it makes them anew.
"""

import asyncio
import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agentsvc.base.values import monotonic
from agentsvc.testing.llm import Reply, ScriptedModel, Turn, call, finish
from tests.docs.session import (
    HEIGHT,
    WIDTH,
    Piece,
    decoded,
    of_cast,
    shortened,
    to_cast,
    to_picture,
)
from tests.live.browser import Console, chromium, state_of
from tests.live.installation import Installation

MEDIA: Final = Path(__file__).parent / "media"
CAST: Final = MEDIA / "run.cast"
SESSION: Final = MEDIA / "run.svg"
CONSOLE: Final = MEDIA / "console.png"

PROJECT: Final = "bill"
TASK: Final = "The test fails: find out why, and mend it"
COMMAND: Final = ("agentsvc", "run", TASK, "--dir", PROJECT, "--yes")
LABEL: Final = "An agent finds out why a test fails, mends it, and its change is brought back"

_FILES: Final = {
    "total.py": """def total(prices):
    result = 0
    for price in prices[1:]:
        result += price
    return result
""",
    "test_total.py": """import unittest

from total import total


class TotalTest(unittest.TestCase):
    def test_every_price_counts(self):
        self.assertEqual(total([3, 4, 5]), 12)
""",
}
_TITLE: Final = "Why the total is wrong"
_FOLDER: Final = re.compile(r"/[\w./-]+/workspace[\w./-]*")
_LONGEST_SECONDS: Final = 600.0
_TYPED_SECONDS: Final = 0.5
_PATIENT: Final = {
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "true",
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE_SECONDS": "300",
    "AGENTSVC_SANDBOXES__START_SECONDS": "400",
    "AGENTSVC_CONVERSATIONS__AGENT_SECONDS": "300",
}


def _edit(turn: Turn) -> Reply:
    told = [str(one["content"]) for one in turn.messages if one["role"] == "tool"]
    folder = _FOLDER.search(told[0])
    return call(
        "file_editor",
        text="The first price is left out.",
        command="str_replace",
        path=f"{folder[0] if folder else ''}/total.py",
        old_str="prices[1:]",
        new_str="prices",
    )


_SCRIPT: Final = (
    call(
        "terminal",
        text="I look at the test first.",
        command="pwd; python3 -B -m unittest 2>&1 | grep Error",
    ),
    call("terminal", command="cat total.py"),
    _edit,
    call("terminal", text="Does it pass now?", command="python3 -B -m unittest 2>&1 | tail -n 1"),
    finish("`total` began with the second price. It counts them all now, and the test passes."),
)


async def main() -> None:
    """Make them anew."""
    MEDIA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="record-") as directory:
        home = Path(directory)
        for name, text in _FILES.items():
            (home / PROJECT).mkdir(exist_ok=True)
            (home / PROJECT / name).write_text(text)
        async with ScriptedModel(_SCRIPT, title=_TITLE) as model:
            installation = Installation(home, model, _PATIENT)
            await installation.start()
            try:
                await installation.client().save_settings()
                await warm_up(installation)
                await asyncio.to_thread(record_session, home, installation)
                await take_picture(installation)
            finally:
                await installation.close()


async def warm_up(installation: Installation) -> None:
    """Have the server load what it loads once."""
    client = installation.client()
    sandbox = (await client.post("/api/v1/sandboxes")).json()
    await client.wait_for_sandbox(sandbox["id"], "RUNNING", time_limit=_LONGEST_SECONDS)
    await client.delete(f"/api/v1/sandboxes/{sandbox['id']}")


def record_session(home: Path, installation: Installation) -> None:
    """Record the command on a terminal; fails if it does."""
    kept = {name: text for name, text in os.environ.items() if "AGENTSVC" not in name}
    environment = {
        **kept,
        "HOME": str(home),
        "TERM": "xterm-256color",
        "AGENTSVC_URL": installation.url,
        "AGENTSVC_API_KEY": installation.key.reveal(),
    }
    environment.pop("NO_COLOR", None)
    parts = run_on_terminal([sys.executable, "-m", *COMMAND], home, environment)
    typed = (_TYPED_SECONDS, f"$ {shlex.join(COMMAND)}\r\n")
    pieces: list[Piece] = [typed, *((at + 2 * _TYPED_SECONDS, text) for at, text in decoded(parts))]
    CAST.write_text(to_cast(COMMAND, LABEL, shortened(pieces)))
    SESSION.write_text(to_picture(of_cast(CAST.read_text())[1], LABEL))


def run_on_terminal(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> list[tuple[float, bytes]]:
    """Return what a command writes to a terminal, and when; fails if the command does."""
    with _terminal() as (ours, theirs):
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        began = monotonic()
        parts = []
        while monotonic() < began + _LONGEST_SECONDS:
            data = _read(ours)
            if data is None:
                break
            if data:
                parts.append((monotonic() - began, data))
        process.terminate()
        if process.wait() != 0:
            said = b"".join(data for _, data in parts).decode(errors="replace")
            raise SystemExit(f"the command failed: {said[-2000:]}")
        return parts


async def take_picture(installation: Installation) -> None:
    """Take a picture of the conversation in the console."""
    client = installation.client()
    found = (await client.get("/api/v1/app-conversations/search")).json()["items"]
    async with chromium() as browser, Console.opened(browser, client) as console:
        page = await console.page(f"c/{found[0]['id']}")
        await state_of(page).get_by_text("Finished").wait_for()
        for head in await page.locator(".fold-head").all():
            await head.click()
        await page.screenshot(path=CONSOLE)


@contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def _read(descriptor: int) -> bytes | None:
    """Return what was written meanwhile, None once nobody can write any more."""
    if not select.select([descriptor], [], [], 1)[0]:
        return b""
    try:
        return os.read(descriptor, 65536) or None
    except OSError:
        # The other side is closed.
        return None


if __name__ == "__main__":
    asyncio.run(main())
