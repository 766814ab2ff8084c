"""The log of a process sandbox: written by the shim, read by the backend."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from process.programs.children import Capture
from process.programs.shim import Log
from process.sandbox_directory import LogFile

from tests.live.disks import mounted


class Pipe:
    """A pipe as the shim reads it."""

    def __init__(self) -> None:
        self.out, self._in = os.pipe()
        os.set_blocking(self.out, False)

    def write(self, text: str) -> None:
        os.write(self._in, text.encode())

    def close(self) -> None:
        os.close(self._in)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.out)


def texts(file: LogFile, count: int = 100) -> list[tuple[str, str]]:
    return [(line.stream, line.text) for line in file.tail(count)]


def test_lines_are_kept_with_their_stream(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(tmp_path / "log", 65536, [])
    pipe.write("one\ntw")
    assert log.copy(pipe.out, b"o")
    pipe.write("o\nbegun")
    pipe.close()
    assert not log.copy(pipe.out, b"o")
    assert texts(LogFile(tmp_path / "log")) == [("stdout", "one"), ("stdout", "two")]
    log.end_lines()
    log.close()
    assert texts(LogFile(tmp_path / "log"), 1) == [("stdout", "begun")]


def test_the_values_of_secrets_are_masked_line_by_line(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(tmp_path / "log", 65536, ["a-long-secret", "first line\nsecond line", "short"])
    pipe.write("x a-long-secret y\nsecond line\nshort\n")
    log.copy(pipe.out, b"e")
    log.close()
    pipe.close()
    assert [text for _, text in texts(LogFile(tmp_path / "log"))] == [
        "x ********** y",
        "**********",
        "short",
    ]


def test_nothing_is_shown_of_a_secret_that_begins_with_others(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(
        tmp_path / "log", 65536, ["a-long-secret" + "-and-more" * count for count in range(9)]
    )
    pipe.write(f"a-long-secret{'-and-more' * 8}\n")
    log.copy(pipe.out, b"e")
    log.close()
    pipe.close()
    assert texts(LogFile(tmp_path / "log")) == [("stderr", "**********")]


def write_without_end(directory: Path, pipe: Pipe, secrets: list[str], parts: Iterable[str]) -> str:
    """Write a line in parts to a log, and return what it has of it."""
    log = Log(directory, 1_000_000, secrets)
    for part in parts:
        pipe.write(part)
        log.copy(pipe.out, b"o")
    log.end_lines()
    log.close()
    pipe.close()
    return "".join(text for _, text in texts(LogFile(directory)))


@pytest.mark.parametrize("at", range(8192 - 14, 8192 + 1))
def test_nothing_is_shown_of_a_secret_where_a_long_line_is_broken(
    tmp_path: Path, pipe: Pipe, at: int
) -> None:
    parts = ("x" * at, "a-long-", "secret", "y" * 9000)
    written = write_without_end(tmp_path / "log", pipe, ["a-long-secret"], parts)
    assert written == f"{'x' * at}{'*' * 10}{'y' * 9000}"


@pytest.mark.parametrize("at", range(8192 - 4, 8192 + 37))
def test_nothing_is_shown_of_a_secret_with_another_one_in_it(
    tmp_path: Path, pipe: Pipe, at: int
) -> None:
    secrets = ["a-long-secret", "user:a-long-secret@host"]
    parts = ("x" * at, "user:a-long-secret@", "host", "y" * 9000)
    written = write_without_end(tmp_path / "log", pipe, secrets, parts)
    assert written == f"{'x' * at}{'*' * 10}{'y' * 9000}"


@pytest.mark.parametrize("secret", ["aaaaaaaa", "*" * 10, "a" * 9000])
def test_a_line_of_secrets_that_overlap_has_an_end(tmp_path: Path, pipe: Pipe, secret: str) -> None:
    written = write_without_end(tmp_path / "log", pipe, [secret], [secret[0] * 1000] * 40)
    assert written.startswith("*" * 10)


def test_nothing_is_shown_of_many_secrets_in_a_line_without_end(tmp_path: Path, pipe: Pipe) -> None:
    told = "a-long-secret" * 3000
    parts = [told[begin : begin + 1000] for begin in range(0, len(told), 1000)]
    written = write_without_end(tmp_path / "log", pipe, ["a-long-secret"], parts)
    assert set(written) == {"*"}


def test_a_line_without_end_is_broken_up(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(tmp_path / "log", 65536, [])
    pipe.write("x" * 20_000)
    log.copy(pipe.out, b"o")
    log.end_lines()
    log.close()
    pipe.close()
    assert [len(text) for _, text in texts(LogFile(tmp_path / "log"))] == [8192, 8192, 3616]


def test_a_reader_follows_through_a_rotation(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(tmp_path / "log", 2000, [])
    reader = LogFile(tmp_path / "log")
    seen = []
    for number in range(100):
        pipe.write(f"line {number}\n")
        log.copy(pipe.out, b"o")
        if number % 7 == 0:
            seen += [line.text for line in reader.more()]
    seen += [line.text for line in reader.more()]
    log.close()
    pipe.close()
    assert seen == [f"line {number}" for number in range(100)]


def test_a_tail_reaches_into_the_older_file(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(tmp_path / "log", 2000, [])
    for number in range(50):
        pipe.write(f"line {number}\n")
        log.copy(pipe.out, b"o")
    log.close()
    pipe.close()
    assert (tmp_path / "log.1").exists()
    assert texts(LogFile(tmp_path / "log"), 30) == [
        ("stdout", f"line {number}") for number in range(20, 50)
    ]


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path, pipe: Pipe) -> None:
    with mounted(tmp_path / "disk", 131_072) as disk:
        log = Log(disk.seen_at / "log", 200_000, [])
        disk.fill()
        for _ in range(300):
            for text in ("a" * 1000 + "\n", "begun"):
                pipe.write(text)
                log.copy(pipe.out, b"o")
        log.end_lines()
        disk.make_room()
        pipe.write("there is room\n")
        log.copy(pipe.out, b"o")
        assert texts(LogFile(disk.seen_at / "log"), 1) == [("stdout", "there is room")]
        log.close()
    pipe.close()


def test_a_log_that_was_removed_is_begun_anew(tmp_path: Path, pipe: Pipe) -> None:
    log = Log(tmp_path / "log", 2000, [])
    (tmp_path / "log").unlink()
    for number in range(50):
        pipe.write(f"line {number}\n")
        log.copy(pipe.out, b"o")
    log.close()
    pipe.close()
    assert texts(LogFile(tmp_path / "log"), 1) == [("stdout", "line 49")]


def test_there_may_be_no_log_yet(tmp_path: Path) -> None:
    reader = LogFile(tmp_path / "log")
    assert reader.tail(5) == []
    assert reader.more() == []


def test_what_is_not_a_line_of_ours_is_left_out(tmp_path: Path) -> None:
    lines = b"torn\n1e300 o x\nnan o x\n1e12 o x\n1e17 o x\n\n1700000000.000 e fine \xff\n"
    (tmp_path / "log").write_bytes(lines)
    assert texts(LogFile(tmp_path / "log")) == [("stderr", "fine �")]


def test_a_capture_keeps_the_beginning_and_says_that_it_was_cut(pipe: Pipe) -> None:
    capture = Capture(pipe.out, 5)
    pipe.write("123")
    assert capture.read()
    assert not capture.is_cut
    pipe.write("4567")
    pipe.close()
    assert not capture.read()
    assert (capture.kept, capture.is_cut) == (b"12345", True)
