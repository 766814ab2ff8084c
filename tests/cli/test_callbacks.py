"""The addresses a server had before are kept for the sandboxes that know no other."""

import logging
import socket
from pathlib import Path

import pytest

from agentsvc.cli.callbacks import address_of, bound, remember
from agentsvc.cli.listener import bind

OLD, NEW, NEWER = ("127.0.0.1", 3000), ("127.0.0.1", 3001), ("::1", 3002)


def test_a_url_has_an_address() -> None:
    assert address_of("http://127.0.0.1:3000") == OLD
    assert address_of("http://[::1]:3002") == NEWER


def test_former_addresses_are_kept_while_there_are_sandboxes(tmp_path: Path) -> None:
    file = tmp_path / "addresses"
    assert remember(file, OLD, has_sandboxes=False) == []
    assert remember(file, OLD, has_sandboxes=True) == []
    assert remember(file, NEW, has_sandboxes=True) == [OLD]
    assert remember(file, NEWER, has_sandboxes=True) == [NEW, OLD]
    assert remember(file, OLD, has_sandboxes=True) == [NEWER, NEW]
    assert remember(file, NEW, has_sandboxes=False) == []
    assert remember(file, OLD, has_sandboxes=True) == [NEW]
    assert file.stat().st_mode & 0o777 == 0o600


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "addresses"
    for port in range(1, 19):
        remember(file, ("127.0.0.1", port), has_sandboxes=True)
    former = remember(file, ("127.0.0.1", 19), has_sandboxes=True)
    assert [port for _, port in former] == [18, 17, 16, 15, 14, 13, 12]


@pytest.mark.parametrize("text", ["nonsense", "127.0.0.1 x", "h 70000", "\xff"])
def test_what_cannot_be_read_is_forgotten(tmp_path: Path, text: str) -> None:
    file = tmp_path / "addresses"
    file.write_bytes(text.encode("latin-1"))
    assert remember(file, OLD, has_sandboxes=True) == []
    assert remember(file, NEW, has_sandboxes=True) == [OLD]


def test_what_cannot_be_noted_does_not_stop_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert remember(tmp_path / "none" / "addresses", OLD, has_sandboxes=True) == []
    assert "server address not written to the data directory" in caplog.messages


def test_an_address_that_is_taken_is_told_and_the_others_are_had(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()
        with bind("127.0.0.1", 0) as trial:
            free = trial.getsockname()
        with bound([taken, free]) as listeners:
            assert [one.getsockname() for one in listeners] == [free]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert all(one.fileno() == -1 for one in listeners)
