"""Process sandboxes that lie over a layer: what is theirs, what is not, and what becomes of the layer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentsvc.base.errors import Conflict, OrderRejected
from agentsvc.plugin.backend import Cause, Limits, Phase
from tests.plugin_loading import part
from tests.plugins.process.rig import core_rig, no_save, until
from tests.plugins.process.test_layers import MANY, make_place, whole

if TYPE_CHECKING:
    from process import overlays
    from process.layers import Layers
    from process.sandbox_directory import SandboxDirectory
else:
    overlays = part("process.overlays")
    Layers, SandboxDirectory = (
        part("process.layers").Layers,
        part("process.sandbox_directory").SandboxDirectory,
    )

FIRST, SECOND, THIRD = 1900000001, 1900000002, 1900000003


def mounted(top: Path) -> list[str]:
    """Return what is mounted below a directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [path for line in lines if (path := line.split()[4]).startswith(f"{top}/")]


def unmount(path: Path) -> None:
    subprocess.run(["umount", path], check=True)


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    found = Layers(tmp_path)
    found.overlays.find(FIRST)
    if found.overlays.why_not:
        pytest.skip(f"nothing can be mounted here: {found.overlays.why_not}")
    yield found
    for directory in tmp_path.iterdir():
        found.overlays.unmount(SandboxDirectory(directory=directory))
    assert mounted(tmp_path) == []


async def keep(layers: Layers, top: Path, name: str = "a") -> Path:
    """Keep a layer of some files that are all the first user's."""
    place = make_place(top, f"maker-{name}")
    (place.workspace / "deps" / "one").mkdir(parents=True)
    (place.workspace / "deps" / "one" / "file").write_text("of the layer")
    (place.workspace / "run").write_text("#!/bin/sh\n")
    (place.workspace / "run").chmod(0o755)
    (place.home / "cache").write_text("cached")
    for path in (*place.directory.rglob("*"),):
        os.chown(path, FIRST, FIRST)
    await whole(lambda: layers.keep(place, name, MANY))
    layers.forget(place)
    place.remove()
    return top / ".layers" / name


async def begun(layers: Layers, top: Path, name: str, user: int = SECOND) -> SandboxDirectory:
    place = make_place(top, name)
    await whole(lambda: layers.begin(place, "a", user))
    return place


def run_as(user: int, script: str, place: SandboxDirectory) -> str:
    """Run a script in the workspace of a sandbox as one who has no right of root's."""
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-ec"]
    # From within, since others may not go through the directories above.
    said = subprocess.run([*command, script], cwd=place.workspace, check=True, capture_output=True)
    return said.stdout.decode()


def tree(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for path in sorted(top.rglob("*")):
        seen = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (seen.st_uid, seen.st_mode, seen.st_mtime_ns, data)
    return found


async def test_files_are_the_sandboxs_own_and_the_layer_stays_as_it_is(
    layers: Layers, tmp_path: Path
) -> None:
    layer = await keep(layers, tmp_path)
    before = tree(layer)
    one, other = await begun(layers, tmp_path, "one"), await begun(layers, tmp_path, "two", THIRD)
    assert {path.stat().st_uid for path in one.workspace.rglob("*")} == {SECOND}
    assert {path.stat().st_uid for path in other.workspace.rglob("*")} == {THIRD}
    script = (
        "echo changed >deps/one/file; rm run; mv deps moved; chmod 700 .; ls; cat moved/one/file"
    )
    assert run_as(SECOND, script, one).split() == ["moved", "changed"]
    assert run_as(THIRD, "ls; cat deps/one/file ../home/cache", other).split("\n")[:2] == [
        *("deps", "run")
    ]
    assert tree(layer) == before
    assert (other.workspace / "deps" / "one" / "file").read_text() == "of the layer"
    # What it has not changed takes nothing of it.
    [_, changes] = overlays.changes(one)
    assert {path.name for path in changes.changes.iterdir()} == {"deps", "moved", "run"}
    # It is begun once only, and what the sandbox has done stays.
    await whole(lambda: layers.begin(one, "a", SECOND))
    assert (one.workspace / "moved" / "one" / "file").read_text() == "changed\n"


async def test_a_layer_that_is_removed_goes_with_the_last_that_lies_over_it(
    layers: Layers, tmp_path: Path
) -> None:
    layer = await keep(layers, tmp_path)
    one, other = await begun(layers, tmp_path, "one"), await begun(layers, tmp_path, "two")
    for _ in range(2):
        await layers.remove("a")
    assert await layers.ids() == []
    late = make_place(tmp_path, "late")
    with pytest.raises(OrderRejected, match="gone"):
        await whole(lambda: layers.begin(late, "a", SECOND))
    assert sorted(path.name for path in late.directory.iterdir()) == ["home", "workspace"]
    layers.forget(one)
    assert layer.with_suffix(".held").is_dir()
    # The machine was restarted, and so was the server.
    layers.overlays.unmount(other)
    assert list(other.workspace.iterdir()) == []
    later = Layers(tmp_path)
    later.sweep()
    await later.attach(other)
    assert (other.workspace / "deps" / "one" / "file").read_text() == "of the layer"
    later.forget(other)
    assert not (tmp_path / ".layers").exists()


async def test_what_was_killed_in_the_middle_is_finished_or_gone(
    layers: Layers, tmp_path: Path
) -> None:
    layer = await keep(layers, tmp_path)
    one = make_place(tmp_path, "one")
    # It was to begin with another one, came as far as this, and lies over one half of this one.
    (one.directory / "over-b" / "home" / "changes").mkdir(parents=True)
    await whole(lambda: layers.begin(one, "a", SECOND))
    unmount(one.home)
    (one.directory / "layer").unlink()
    await whole(lambda: layers.begin(one, "a", SECOND))
    assert (one.home / "cache").read_text() == "cached"
    assert len(mounted(tmp_path)) == 2
    # A removal that came as far as this.
    await layers.remove("a")
    one.leave()
    layers.overlays.unmount(one)
    await layers.attach(one)
    assert mounted(tmp_path) == []
    one.remove()
    Layers(tmp_path).sweep()
    assert not layer.parent.exists()


async def test_what_lies_over_a_layer_is_copied_kept_and_rolled_back(
    layers: Layers, tmp_path: Path
) -> None:
    await keep(layers, tmp_path)
    one = await begun(layers, tmp_path, "one")
    (one.directory / "record.json").write_text(
        '{"instance_id":"i","sandbox_id":"one","created_at":"2026-01-01T00:00:00Z","temp":"",'
        '"working_dir":"","ports":[]}'
    )
    (one.workspace / "new").write_text("its own")
    (one.workspace / "run").unlink()
    layers.overlays.unmount(one)
    await whole(lambda: layers.keep_checkpoint(one, "c0", keep=3, max_bytes=MANY))
    layers.overlays.unmount(one)
    fork = make_place(tmp_path, "fork")
    await whole(lambda: layers.begin_as(fork, one, THIRD))
    layers.overlays.unmount(one)
    assert await whole(lambda: layers.keep(one, "b", MANY)) > 0
    of_layer = make_place(tmp_path, "of-layer")
    await whole(lambda: layers.begin(of_layer, "b", THIRD))
    for place in (fork, of_layer):
        assert sorted(path.name for path in place.workspace.iterdir()) == ["deps", "new"]
        assert (place.workspace / "new").stat().st_uid == THIRD
    await layers.remove("a")
    (one.workspace / "new").write_text("changed")
    await layers.roll_back(one, "c0")
    await whole(lambda: layers.finish_rollback(one, SECOND))
    assert (one.workspace / "new").read_text() == "its own"
    assert (one.home / "cache").read_text() == "cached"
    # It has files of its own now.
    assert await layers.ids() == ["b"]
    assert [path.name for path in (tmp_path / ".layers").iterdir()] == ["b"]
    assert {Path(path).parent.name for path in mounted(tmp_path)} == {"of-layer"}


async def test_one_that_cannot_be_mounted_says_so_and_copies(tmp_path: Path) -> None:
    layers = Layers(tmp_path)
    layers.overlays.find(0, is_wanted=False)
    assert layers.overlays.describe().startswith("copied")
    [advice] = layers.overlays.advice()
    assert "use_overlayfs" in advice.text
    await keep(layers, tmp_path)
    place = await begun(layers, tmp_path, "one", os.geteuid())
    assert overlays.changes(place) == []
    assert (place.home / "cache").read_text() == "cached"


HOSTILE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
tried = {}
def attempt(name, work):
    try:
        tried[name] = str(work())
    except OSError as exc:
        tried[name] = exc.strerror
deps = f"{sys.argv[1]}/deps"
attempt("its own", lambda: open(f"{deps}/file", "w").write("hostile"))
for name in ("trusted.overlay.redirect", "trusted.overlay.opaque"):
    attempt(name, lambda: os.setxattr(deps, name, b"/"))
attempt("chown", lambda: os.chown(deps, 0, 0))
attempt("device", lambda: os.mknod(f"{deps}/device", 0o20666, os.makedev(1, 3)))
attempt("layers", lambda: os.listdir(sys.argv[2]))
attempt("over", lambda: os.listdir(f"{sys.argv[1]}/../over-a"))
def checked(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
attempt("umount", lambda: checked(libc.umount2(sys.argv[1].encode(), 2)))
attempt("mount", lambda: checked(libc.mount(b"overlay", b"/tmp", b"overlay", 0, b"lowerdir=/usr:/etc")))
attempt("rename", lambda: os.rename(deps, f"{sys.argv[1]}/away"))
print(json.dumps(tried))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_a_hostile_sandbox_reaches_neither_the_layer_nor_another_one(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        if not (await bench.backend.probe()).facts["layers"].startswith("shared"):
            pytest.skip("nothing can be mounted here")
        maker = await bench.serve("import os; os.chdir('../workspace'); os.mkdir('deps')")
        workspace = bench.directory(maker) / "workspace"
        await bench.run(maker, "sh", "-c", f"echo good >{workspace}/deps/file")
        await bench.backend.stop(maker)
        await whole(lambda: bench.backend.keep_layer(maker, "a", max_bytes=MANY))
        layer = bench.state_dir / ".layers" / "a"
        before = tree(layer)
        one, other = await bench.serve(layer="a"), await bench.serve(layer="a")
        own = bench.directory(one) / "workspace"
        said = await bench.run(one, sys.executable, "-ISc", HOSTILE, str(own), str(layer.parent))
        tried = json.loads(said)
        assert (tried.pop("its own"), tried.pop("rename")) == ("7", "None")
        assert set(tried.values()) <= {
            *("Operation not permitted", "No such file or directory", "Invalid argument")
        }, tried
        assert tree(layer) == before
        theirs = bench.directory(other) / "workspace"
        assert await bench.run(other, "cat", f"{theirs}/deps/file") == "good\n"
        assert await bench.run(one, "cat", f"{own}/away/file") == "hostile"
        # All of it is as before after a stop, and after the machine was restarted.
        await bench.backend.stop(one)
        for path in ("home", "workspace"):
            unmount(bench.directory(one) / path)
        one = await bench.backend.restart(bench.orders[one.sandbox_id], one, no_save)
        await bench.wait(one, Phase.RUNNING)
        assert await bench.run(one, "cat", f"{own}/away/file") == "hostile"
        for handle in (maker, one, other):
            await bench.backend.delete(handle)
        await bench.backend.remove_layer("a")
        assert mounted(tmp_path) == []
        assert not layer.parent.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_only_what_it_has_changed_counts_as_a_sandboxs(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        if not (await bench.backend.probe()).facts["layers"].startswith("shared"):
            pytest.skip("nothing can be mounted here")
        limits = Limits(disk_bytes=16 * 2**20)
        maker = await bench.serve()
        workspace = bench.directory(maker) / "workspace"
        await bench.run(maker, "dd", "if=/dev/urandom", f"of={workspace}/big", "bs=1M", "count=12")
        await bench.backend.stop(maker)
        await whole(lambda: bench.backend.keep_layer(maker, "a", max_bytes=MANY))
        one = await bench.serve(layer="a", limits=limits)
        own = bench.directory(one) / "workspace"
        await until(lambda: bench.state(one).get("disk_bytes") is not None)
        assert bench.state(one)["disk_bytes"] < 2**20
        # What has no name any more counts, too.
        fill = (
            f"import os, time; file = open('{own}/new', 'wb'); os.unlink('{own}/new');"
            "[file.write(bytes(2**20)) for _ in range(15)]; file.flush();"
            f"open('{own}/more', 'wb').write(bytes(5 * 2**20)); time.sleep(600)"
        )
        with pytest.raises(Conflict):
            await bench.backend.execute(
                one, ["python3", "-c", fill], env={}, time_limit=60, max_output=1000
            )
        report = await bench.backend.inspect(one)
        assert (report.phase, report.cause) == (Phase.FAILED, Cause.DISK_FULL)
        await bench.backend.remove_layer("a")
