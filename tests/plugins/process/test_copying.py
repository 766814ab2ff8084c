"""Copies of the files of process sandboxes that run: as they were at one moment, and nobody else's."""

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from agentsvc.base.errors import OrderRejected
from agentsvc.plugin import FilesRefused, copy_running
from tests.plugin_loading import part
from tests.plugins.process.test_layers import make_place, whole

if TYPE_CHECKING:
    from process.layers import Layers
    from process.sandbox_directory import SandboxDirectory
else:
    Layers, SandboxDirectory = (
        part("process.layers").Layers,
        part("process.sandbox_directory").SandboxDirectory,
    )


def copied(source: Path, tmp_path: Path) -> Path:
    into = tmp_path / "copies"
    into.mkdir()
    copy = copy_running({source.name: source}, into, Event()).path
    assert [path.name for path in into.iterdir()] == [copy.name]
    return copy / source.name


def test_a_copy_is_like_its_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "run").write_text("#!/bin/sh\n")
    (source / "a" / "b" / "run").chmod(0o4755)
    (source / "a").chmod(0o500)
    os.utime(source / "a" / "b" / "run", (1, 2))
    (source / "link").symlink_to("/etc/passwd")
    (source / "one").write_text("x")
    (source / "two").hardlink_to(source / "one")
    os.mkfifo(source / "pipe")
    with (source / "sparse").open("wb") as file:
        file.truncate(2**40)
        file.seek(2**30)
        file.write(b"in the middle")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "socket"))
        copy = copied(source, tmp_path)
    assert sorted(path.name for path in copy.iterdir()) == ["a", "link", "one", "sparse", "two"]
    assert (copy / "a").stat().st_mode & 0o7777 == 0o500
    run = (copy / "a" / "b" / "run").stat()
    assert (run.st_mode & 0o7777, run.st_mtime, run.st_size) == (0o755, 2, 10)
    assert (copy / "link").readlink() == Path("/etc/passwd")
    assert (copy / "one").samefile(copy / "two")
    assert not (copy / "one").samefile(source / "one")
    sparse = (copy / "sparse").stat()
    assert sparse.st_size == 2**40
    assert sparse.st_blocks < 100
    with (copy / "sparse").open("rb") as file:
        file.seek(2**30)
        assert file.read(13) == b"in the middle"


def while_changing[T](change: Callable[[int], None], work: Callable[[], T]) -> T:
    over, begun = Event(), Event()

    def loop() -> None:
        number = 0
        while not over.is_set():
            change(number)
            number += 1
            begun.set()

    thread = threading.Thread(target=loop)
    thread.start()
    begun.wait()
    try:
        return work()
    finally:
        over.set()
        thread.join()


def test_what_changes_all_the_time_is_copied_nevertheless(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(300):
        (source / f"still-{number}").write_text(str(number))

    def change(number: int) -> None:
        (source / f"new-{number % 50}").write_text("x" * number)
        (source / f"new-{(number + 25) % 50}").unlink(missing_ok=True)

    copy = while_changing(change, lambda: copied(source, tmp_path))
    assert {f"still-{number}" for number in range(300)} <= {path.name for path in copy.iterdir()}


def test_no_link_that_is_put_there_meanwhile_leads_out(tmp_path: Path) -> None:
    source, outside = tmp_path / "source", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    for number in range(50):
        (source / f"d{number}").mkdir(parents=True)
        (source / f"d{number}" / "file").write_text("own")

    def change(number: int) -> None:
        place = source / f"d{number % 50}"
        place.rename(source / "away")
        place.symlink_to(outside)
        place.unlink()
        place.mkdir()
        (place / "file").symlink_to(outside / "file")
        (place / "file").unlink()
        (place / "file").write_text("own")
        shutil.rmtree(source / "away")

    def many() -> None:
        for number in range(10):
            copy = copied(source, tmp_path)
            texts = {
                path.read_text()
                for path in copy.rglob("file")
                if not path.is_symlink() and not path.parent.is_symlink()
            }
            assert texts <= {"own", ""}, number
            shutil.rmtree(tmp_path / "copies")

    while_changing(change, many)


def test_directories_may_only_be_so_deep(tmp_path: Path) -> None:
    (tmp_path / "source" / "/".join("d" * 70)).mkdir(parents=True)
    with pytest.raises(FilesRefused, match="levels deep"):
        copied(tmp_path / "source", tmp_path)


def make_other(tmp_path: Path) -> SandboxDirectory:
    other = make_place(tmp_path, "other")
    (other.directory / "record.json").write_text(
        '{"instance_id":"i","sandbox_id":"other","created_at":"2026-01-01T00:00:00Z","temp":"",'
        '"working_dir":"","ports":[]}'
    )
    return other


async def test_a_sandbox_begins_with_what_another_has(tmp_path: Path) -> None:
    layers, other, own = Layers(tmp_path), make_other(tmp_path), make_place(tmp_path, "own")
    (other.workspace / "file").write_text("first")
    (own.directory / "layer.part" / "0").mkdir(parents=True)
    await whole(lambda: layers.begin_as(own, other, os.geteuid()))
    (own.workspace / "file").write_text("own")
    for _ in range(2):
        await whole(lambda: layers.begin_as(own, other, os.geteuid()))
    assert (own.workspace / "file").read_text() == "own"
    assert (other.workspace / "file").read_text() == "first"
    assert sorted(path.name for path in own.directory.iterdir()) == ["home", "layer", "workspace"]


async def test_nothing_begins_with_the_rest_of_what_is_being_removed(tmp_path: Path) -> None:
    layers, other, own = Layers(tmp_path), make_other(tmp_path), make_place(tmp_path, "own")
    (other.directory / "leaving").touch()
    with pytest.raises(OrderRejected, match="is gone"):
        await whole(lambda: layers.begin_as(own, other, os.geteuid()))
    other.remove()
    with pytest.raises(OrderRejected, match="is gone"):
        await whole(lambda: layers.begin_as(own, other, os.geteuid()))
    assert not (own.directory / "layer").exists()


async def test_copying_for_a_sandbox_that_is_to_go_ends(tmp_path: Path) -> None:
    layers, other, own = Layers(tmp_path), make_other(tmp_path), make_place(tmp_path, "own")
    for number in range(20_000):
        (other.workspace / str(number)).touch()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await layers.begin_as(own, other, os.geteuid())
    await layers.abandon("own")
    copies = list((own.directory / "layer.part").glob("*/workspace/*"))
    await asyncio.sleep(0.1)
    assert len(copies) < 20_000
    assert len(list((own.directory / "layer.part").glob("*/workspace/*"))) == len(copies)
