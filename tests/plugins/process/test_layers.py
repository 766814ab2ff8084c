"""Layers of process sandboxes: what is copied, what is left of what was broken off, and a full disk."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentsvc.base.errors import BackendUnavailable, CapacityExceeded, OrderRejected
from agentsvc.plugin import StillFetching
from tests.live.disks import Disk, mounted
from tests.plugin_loading import part

if TYPE_CHECKING:
    from process.layers import Layers
    from process.sandbox_directory import SandboxDirectory
else:
    Layers, SandboxDirectory = (
        part("process.layers").Layers,
        part("process.sandbox_directory").SandboxDirectory,
    )

MANY = 10**9


async def whole[T](ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except StillFetching:
            await asyncio.sleep(0.01)


def make_place(top: Path, name: str) -> SandboxDirectory:
    place = SandboxDirectory(directory=top / name)
    for path in (place.home, place.workspace):
        path.mkdir(parents=True)
    return place


async def test_files_are_copied_as_they_are_and_lead_nowhere_else(tmp_path: Path) -> None:
    layers, first = Layers(tmp_path), make_place(tmp_path, "first")
    outside = tmp_path / "outside"
    outside.write_text("not theirs")
    (first.workspace / "link").symlink_to(outside)
    (first.workspace / "run").write_text("x")
    (first.workspace / "run").chmod(0o755)
    (first.home / ".cache").mkdir()
    os.mkfifo(first.home / ".cache" / "pipe")
    assert await whole(lambda: layers.keep(first, "a", MANY)) > 0
    # What the first one does from now on is its own matter.
    (first.workspace / "run").write_text("changed")
    second = make_place(tmp_path, "second")
    (second.workspace / "of-nobody").write_text("it was made before the copy")
    await whole(lambda: layers.begin(second, "a", os.geteuid()))
    assert sorted(path.name for path in second.workspace.iterdir()) == ["link", "run"]
    assert (second.workspace / "link").readlink() == outside
    assert (second.workspace / "run").read_text() == "x"
    assert (second.workspace / "run").stat().st_mode & 0o777 == 0o755
    assert (second.home / ".cache" / "pipe").is_fifo()
    (second.workspace / "run").write_text("own")
    await whole(lambda: layers.begin(second, "a", os.geteuid()))
    assert (second.workspace / "run").read_text() == "own"


async def test_what_was_broken_off_is_begun_again_and_leaves_nothing(tmp_path: Path) -> None:
    layers, first = Layers(tmp_path), make_place(tmp_path, "first")
    (first.workspace / "file").write_text("kept")
    half = tmp_path / ".layers" / "b.part"
    (half / "workspace").mkdir(parents=True)
    layers.sweep()
    assert await layers.ids() == []
    assert not half.exists()
    await whole(lambda: layers.keep(first, "b", MANY))
    second = make_place(tmp_path, "second")
    (second.directory / "layer.part" / "home").mkdir(parents=True)
    await whole(lambda: layers.begin(second, "b", os.geteuid()))
    assert (second.workspace / "file").read_text() == "kept"
    assert not (second.directory / "layer.part").exists()
    await layers.abandon("second")
    await layers.remove("b")
    assert not (tmp_path / ".layers").exists()


async def test_checkpoints_share_what_has_not_changed_and_are_few(tmp_path: Path) -> None:
    layers, place = Layers(tmp_path), make_place(tmp_path, "first")
    (place.workspace / "large").write_bytes(os.urandom(2**20))
    (place.workspace / "small").write_text("0")
    await asyncio.sleep(0.05)

    async def take(name: str, max_bytes: int = MANY) -> None:
        await whole(lambda: layers.keep_checkpoint(place, name, keep=3, max_bytes=max_bytes))

    for number in range(5):
        (place.workspace / "small").write_text(f"{number}")
        await take(f"c{number}")
    assert [name for name, _ in await layers.checkpoints(place)] == ["c2", "c3", "c4"]
    kept = sorted(place.checkpoints.iterdir())
    assert [(path / "workspace" / "small").read_text() for path in kept] == ["2", "3", "4"]
    assert {(path / "workspace" / "large").stat().st_ino for path in kept} != {
        (place.workspace / "large").stat().st_ino
    }
    assert len({(path / "workspace" / "large").stat().st_ino for path in kept}) == 1
    # What is removed in the sandbox is kept as long as it may be.
    (place.workspace / "large").write_bytes(os.urandom(2**20))
    await take("c5", 3 * 2**19)
    assert [name for name, _ in await layers.checkpoints(place)] == ["c5"]
    with pytest.raises(OrderRejected):
        await take("c6", 10)
    for name in ("", "../x", "A"):
        with pytest.raises(OrderRejected):
            await take(name)


async def test_a_checkpoint_is_the_newest_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    layers, place = Layers(tmp_path), make_place(tmp_path, "first")

    async def take(name: str) -> None:
        await whole(lambda: layers.keep_checkpoint(place, name, keep=2, max_bytes=MANY))

    for name in ("c0", "c1"):
        await take(name)
    for path in list(place.checkpoints.iterdir()):
        begun, _, rest = path.name.partition("-")
        path.rename(path.with_name(f"{int(begun) + 3600 * 10**9}-{rest}"))
    (place.workspace / "file").write_text("1")
    os.utime(place.workspace / "file", (0, 0))
    await take("c2")
    (place.workspace / "file").write_text("2")
    os.utime(place.workspace / "file", (0, 0))
    await take("c3")
    assert [name for name, _ in await layers.checkpoints(place)] == ["c2", "c3"]
    [kept] = [path for path in place.checkpoints.iterdir() if path.name.endswith("-c3")]
    assert [path.read_text() for path in kept.rglob("file")] == ["2"]


async def test_going_back_is_done_at_the_next_start_and_only_then(tmp_path: Path) -> None:
    layers, place = Layers(tmp_path), make_place(tmp_path, "first")
    (place.workspace / "file").write_text("before")
    await whole(lambda: layers.keep_checkpoint(place, "c0", keep=3, max_bytes=MANY))
    (place.workspace / "file").write_text("after")
    (place.home / "new").touch()
    with pytest.raises(OrderRejected):
        await layers.roll_back(place, "c1")
    await layers.finish_rollback(place, os.geteuid())
    assert (place.workspace / "file").read_text() == "after"
    await layers.roll_back(place, "c0")
    # A start that was killed in the middle of it.
    (place.directory / "layer.part" / "home").mkdir(parents=True)
    await whole(lambda: layers.finish_rollback(place, os.geteuid()))
    assert (place.workspace / "file").read_text() == "before"
    assert list(place.home.iterdir()) == []
    (place.workspace / "file").write_text("own")
    await layers.finish_rollback(place, os.geteuid())
    assert (place.workspace / "file").read_text() == "own"
    [kept] = place.checkpoints.iterdir()
    assert (kept / "workspace" / "file").read_text() == "before"
    assert sorted(path.name for path in place.directory.iterdir()) == [
        *("checkpoints", "home", "workspace")
    ]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a.part"])
async def test_a_name_that_is_no_id_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OrderRejected):
        await Layers(tmp_path).keep(make_place(tmp_path, "first"), name, MANY)


async def test_a_copy_that_cannot_be_begun_now_can_be_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    layers, first = Layers(tmp_path), make_place(tmp_path, "first")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(CapacityExceeded):
        await whole(lambda: layers.keep(first, "a", MANY))
    monkeypatch.undo()
    assert await whole(lambda: layers.keep(first, "a", MANY)) > 0


async def test_layers_on_a_disk_that_is_away_are_not_gone(tmp_path: Path) -> None:
    assert await Layers(tmp_path).ids() == []
    with pytest.raises(BackendUnavailable):
        await Layers(tmp_path / "away").ids()


async def test_a_full_disk_is_told_and_leaves_no_half_of_a_layer(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    if not disk.is_there:
        pytest.skip(f"no disk can be mounted here: {disk.remove()}")
    try:
        layers, first = Layers(disk.seen_at), make_place(disk.seen_at, "first")
        (first.workspace / "large").write_bytes(os.urandom(5 * 1024 * 1024))
        with pytest.raises(CapacityExceeded, match="disk is full"):
            await whole(lambda: layers.keep(first, "c", MANY))
        assert await layers.ids() == []
        assert list((disk.seen_at / ".layers").iterdir()) == []
        (first.workspace / "large").write_bytes(b"small")
        await whole(lambda: layers.keep(first, "c", MANY))
        assert await layers.ids() == ["c"]
    finally:
        disk.remove()


async def test_a_checkpoint_takes_at_most_half_of_what_is_free(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        layers, place = Layers(disk.seen_at), make_place(disk.seen_at, "first")
        (place.workspace / "large").write_bytes(os.urandom(3 * 2**20))
        with pytest.raises(OrderRejected, match="half of"):
            await whole(lambda: layers.keep_checkpoint(place, "c0", keep=3, max_bytes=MANY))
        (place.workspace / "large").write_bytes(os.urandom(2**20))
        await whole(lambda: layers.keep_checkpoint(place, "c1", keep=3, max_bytes=MANY))
        assert [name for name, _ in await layers.checkpoints(place)] == ["c1"]
