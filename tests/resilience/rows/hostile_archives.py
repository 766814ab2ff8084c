"""Backups, imports and archives made to harm whoever unpacks them change nothing elsewhere.

`agentsvc restore` gets each hostile backup; what makes archives of workspaces gets each as what a
sandbox sends; `agentsvc import` gets a directory of links and special files. What lies outside is
compared before and after, and each must end within its time, with words and not with a traceback.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base.errors import AgentsvcError
from agentsvc.base.values import monotonic
from agentsvc.conversations.archives.tarball import UnpackLimits, read_parts, repack
from tests.hostile_archives import hostile_tars, plant, tree
from tests.openhands_data import lay_newer, lay_older
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, command, serving

_SECONDS: Final = 60.0
_MAX_BYTES: Final = 1 << 30
_CANARY: Final = "canary-outside-the-import"


class Found(msgspec.Struct, kw_only=True):
    """What was unpacked, and what that has done."""

    tried: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class Guarded:
    """A directory that no archive may touch, and what is said of it afterwards."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        plant(directory)
        self._before = tree(directory)

    def changes(self) -> list[str]:
        """Return what has changed since the last time this was asked, and put it right."""
        after = tree(self.path)
        if after == self._before:
            return []
        names = [
            f"{Path(name).name or name}"
            for name in sorted({*after, *self._before})
            if after.get(name) != self._before.get(name)
        ]
        shutil.rmtree(self.path)
        plant(self.path)
        self._before = tree(self.path)
        return [f"outside was changed: {', '.join(names)}"]


async def _good_backup(server: Server, directory: Path) -> dict[str, bytes]:
    """Return the files of a backup as the server makes it."""
    file = directory / "good.tar.gz"
    data = str(server.installation.data.path)
    done = await asyncio.to_thread(command, "backup", str(file), "--data-dir", data)
    assert done.returncode == 0, done.stderr
    with tarfile.open(file) as archive:
        members = [one for one in archive if one.isreg()]
        return {one.name: archive.extractfile(one).read() for one in members}  # type: ignore[union-attr]  # it is a file


def _restore(name: str, raw: bytes, directory: Path, guarded: Guarded) -> Iterator[str]:
    """Restore a hostile backup to a directory of its own; yield what it did beyond it."""
    file, target = directory / "hostile.tar.gz", directory / "restored"
    file.write_bytes(raw)
    began = monotonic()
    try:
        done = command("restore", str(file), "--data-dir", str(target), time_limit=_SECONDS)
        if "Traceback" in done.stderr:
            yield f"a traceback: {done.stderr.strip().splitlines()[-1]}"
    except subprocess.TimeoutExpired:
        yield f"it is not done after {monotonic() - began:.0f} s"
    yield from guarded.changes()
    yield from _strange(target)
    shutil.rmtree(target, ignore_errors=True)
    file.unlink()


def _strange(directory: Path) -> Iterator[str]:
    """Yield what a restored directory has that no backup of the server's has."""
    taken = 0
    for top, folders, files in os.walk(directory):
        for one in (*folders, *files):
            path = Path(top, one)
            seen = path.lstat()
            taken += seen.st_blocks * 512
            if not (path.is_dir() or path.is_file()) or path.is_symlink():
                yield f"it made {path.relative_to(directory)}, which is no file"
            elif seen.st_nlink > 1 and path.is_file():
                yield f"it made {path.relative_to(directory)}, which has another name"
            elif seen.st_mode & 0o6022:
                yield f"it made {path.relative_to(directory)} with mode {seen.st_mode & 0o7777:o}"
    if taken > _MAX_BYTES:
        yield f"it has written {taken:,} bytes"


def _pack(name: str, raw: bytes, directory: Path, guarded: Guarded) -> Iterator[str]:
    """Make an archive of a workspace from it, and look where that would be unpacked."""
    source, target = directory / "sent.tar.gz", directory / "packed.tar.zst"
    source.write_bytes(raw)
    began = monotonic()
    try:
        repack(source, target, UnpackLimits(unpacked_bytes=1 << 26, files=2000))
        yield from _leading_out(target, directory)
    except AgentsvcError:
        pass
    except Exception as exc:  # noqa: BLE001  # which is what is looked for
        yield f"{type(exc).__name__}: {exc}"
    if monotonic() - began > _SECONDS:
        yield f"it took {monotonic() - began:.0f} s"
    yield from guarded.changes()
    source.unlink()
    target.unlink(missing_ok=True)


def _leading_out(target: Path, directory: Path) -> Iterator[str]:
    plain = directory / "plain.tar"
    with plain.open("wb") as file:
        for part in read_parts(target):
            file.write(part)
    with tarfile.open(plain) as archive:
        for one in archive:
            if one.name.startswith("/") or ".." in Path(one.name).parts:
                yield f"it has {one.name[:60]!r}"
            if not (one.isreg() or one.isdir() or one.issym() or one.islnk()):
                yield f"it has something special: {one.name[:60]!r}"
            if one.mode & 0o6000:
                yield f"it has a program with rights of its owner: {one.name[:60]!r}"
    plain.unlink()


async def _import(ground: Ground, server: Server) -> list[str]:
    """Import a directory in which links lead outside and pipes wait; nothing outside may be read."""
    source, outside = ground.place("source"), ground.place("secrets")
    (outside / "secret.json").write_text(
        msgspec.json.encode({"title": _CANARY, "llm_api_key": _CANARY}).decode()
    )
    lay_older(source)
    lay_newer(source)
    found = [path for path in sorted(source.rglob("*")) if path.is_file()]
    for path in ground.chance.sample(found, len(found) // 2):
        path.unlink()
        if ground.chance.random() < 0.3:
            os.mkfifo(path)
        else:
            path.symlink_to(outside / "secret.json")
    with contextlib.suppress(FileExistsError):
        (source / "loop").symlink_to(source)
    data = str(server.installation.data.path)
    names = ("import", "openhands", str(source), "--data-dir", data)
    try:
        done = await asyncio.to_thread(command, *names, time_limit=_SECONDS)
    except subprocess.TimeoutExpired:
        return ["the import waits for a pipe"]
    problems = ["the import ends in a traceback"] if "Traceback" in done.stderr else []
    kept = b"".join(
        path.read_bytes() for path in server.installation.data.path.glob("agentsvc.db*")
    )
    if _CANARY.encode() in kept or _CANARY in done.stdout + done.stderr:
        problems.append("the import reads what a link leads to")
    return problems


def _try(
    cases: list[tuple[str, bytes]], directory: Path, guarded: Guarded, work: Any, what: str
) -> Found:
    found = Found()
    for name, raw in cases:
        found.tried += 1
        found.problems += [f"{what}, {name}: {one}" for one in work(name, raw, directory, guarded)]
    return found


async def run(ground: Ground) -> Outcome:
    guarded = Guarded(ground.place("outside"))
    directory = ground.place("work")
    async with serving(ground.place("server")) as server:
        first = await _good_backup(server, directory)
        works: tuple[tuple[str, Callable[..., Iterator[str]], dict[str, Any], int], ...] = (
            ("restore", _restore, {"first": first, "below": "archives"}, 12),
            ("a restore without a head", _restore, {}, 4),
            ("an archive", _pack, {}, 20),
        )
        found = Found()
        for what, work, options, least in works:
            cases = list(hostile_tars(guarded.path, **options))
            if ground.scale < 1:
                cases = ground.chance.sample(
                    cases, min(len(cases), ground.count(len(cases), least=least))
                )
            one = await asyncio.to_thread(_try, cases, directory, guarded, work, what)
            found.tried += one.tried
            found.problems += one.problems
        found.problems += await _import(ground, server)
    return Outcome(
        did=(
            f"{found.tried} hostile archives, each restored as a backup by `agentsvc restore` or made"
            " an archive of a workspace of, and a directory with links and pipes that is imported"
        ),
        figures=(
            Figure(what="archives", value=found.tried, at_least=30),
            zero("that changed or read what is outside, or did not end well", found.problems),
        ),
        problems=tuple(found.problems),
    )


ROW: Final = Row(name="archives", half=Half.IN, promise="no archive harms", run=run)
