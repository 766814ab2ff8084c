"""The recorded session and the picture of the console are what the README shows, and of today's commands."""

import struct
from pathlib import Path
from xml.etree import ElementTree

from agentsvc.cli.run import command as run_command
from tests.docs.record import CAST, COMMAND, CONSOLE, LABEL, PROJECT, SESSION
from tests.docs.session import HEIGHT, WIDTH, of_cast, shortened, to_cast, to_picture
from tests.live.browser import DESKTOP

ROOT = Path(__file__).parents[2]
MAX_BYTES = 300_000


def lines_of(picture: str) -> list[tuple[str | None, str]]:
    """Return when each line of a picture comes, and what it says."""
    root = ElementTree.fromstring(picture)  # noqa: S314  # we have drawn it
    found = [one for one in root.iter() if one.tag.endswith("}text")]
    return [(one.get("style"), "".join(one.itertext())) for one in found]


def test_the_recorded_session_is_of_a_command_as_it_is_and_ends_well(tmp_path: Path) -> None:
    command, pieces = of_cast(CAST.read_text())
    assert command == list(COMMAND)
    options = [
        "--dir" if one == "--dir" else str(tmp_path) if one == PROJECT else one
        for one in command[2:]
    ]
    run_command.make_context("run", options)
    times = [at for at, _ in pieces]
    assert times == sorted(times)
    shown = "".join(text for _, text in pieces)
    assert shown.startswith(f"$ agentsvc run '{command[2]}' --dir {PROJECT}")
    assert f"written to {PROJECT}" in shown
    assert "the agent is done" in shown
    assert CAST.stat().st_size < MAX_BYTES


def test_the_picture_of_the_session_is_drawn_from_it() -> None:
    _, pieces = of_cast(CAST.read_text())
    assert SESSION.read_text() == to_picture(pieces, LABEL)
    texts = [text for _, text in lines_of(SESSION.read_text())]
    assert texts[0].startswith("$ agentsvc run")
    assert not any("\x1b" in text for text in texts)
    assert len(texts) > HEIGHT / 2
    assert SESSION.stat().st_size < MAX_BYTES


def test_the_picture_of_the_console_is_one_and_small() -> None:
    data = CONSOLE.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (DESKTOP["width"], DESKTOP["height"])
    assert len(data) < MAX_BYTES


def test_the_readme_shows_both() -> None:
    text = (ROOT / "README.md").read_text()
    for file in (SESSION, CONSOLE):
        assert f"]({file.relative_to(ROOT)})" in text
    assert str(CAST.relative_to(ROOT)) in text


def test_pauses_are_cut_and_what_turns_is_shown_for_a_moment() -> None:
    frame = "\r\x1b[2K\x1b[32m⠋\x1b[0m \x1b[2mworking\x1b[0m"
    turning = [(1.0 + number, frame) for number in range(9)]
    pieces = list(
        shortened(
            [(0.0, "$ a\r\n"), *turning, (60.0, "\r\x1b[2K<b>\r\n"), (60.0, "c" * WIDTH + "d")]
        )
    )
    assert [at for at, _ in pieces] == [0.0, 0.8, 1.6, 2.4, 3.2, 4.0, 4.8, 5.6, 5.6]
    assert of_cast(to_cast(["a", "b"], "A title", pieces)) == (["a", "b"], pieces)
    assert 'aria-label="&lt;A&gt;"' in to_picture(pieces, "<A>")
    lines = lines_of(to_picture(pieces, "<A>"))
    assert lines == [
        ("animation-delay:0.0s", "$ a"),
        ("animation-delay:5.6s", "<b>"),
        ("animation-delay:5.6s", "c" * WIDTH),
        ("animation-delay:5.6s", "d"),
    ]
