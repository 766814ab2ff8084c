"""Archives made to harm are refused, or lose what harms; nothing anywhere is changed by them."""

import gzip
import io
import os
import posixpath
import sqlite3
import stat
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd
from click.testing import CliRunner, Result

from agentsvc.base.errors import AgentsvcError, ArchiveRefused
from agentsvc.cli import CommandFailed, cli
from agentsvc.cli.run.files import read_files
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.archives import tarball
from agentsvc.conversations.archives.tarball import UnpackLimits, read_parts, repack
from agentsvc.http.v0.workspaces import to_zip
from agentsvc.storage.tar_reader import BadTar, TarStream
from tests.cli.test_operations import store_model_key
from tests.hostile_archives import PLANTED, TERABYTES, hostile_tars, plant, tree

BOUNDS = UnpackLimits(unpacked_bytes=4 * 1024**3, files=10_000)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    found = tmp_path / "outside"
    plant(found)
    return found


@pytest.fixture
def backup(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of a good backup."""
    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    store_model_key(places.path)
    file = tmp_path / "good.tar.gz"
    assert call("backup", file, "--data-dir", places.path).exit_code == 0
    with tarfile.open(file) as archive:
        return {
            one.name: (archive.extractfile(one) or io.BytesIO()).read()
            for one in archive.getmembers()
        }


def write_backup(file: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


@pytest.mark.parametrize("size", [b"-77777777000", b"+7", b"7_7"])
def test_a_size_is_written_in_octal_digits_alone(size: bytes) -> None:
    block = bytearray(tarfile.TarInfo("file").tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size.ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(BadTar, match="a number is malformed"):
        next(iter(TarStream(io.BytesIO(bytes(block) + bytes(8 * 512)))))


@pytest.mark.timeout(300)
def test_no_hostile_backup_is_restored_or_changes_anything(
    tmp_path: Path, outside: Path, backup: dict[str, bytes]
) -> None:
    there, file = tmp_path / "there", tmp_path / "hostile.tar.gz"
    there.mkdir()
    (there / "config.toml").write_text("# of the operator\n")
    restored = []
    for below in ("archives", ""):
        for name, data in hostile_tars(outside, first=backup, below=below):
            file.write_bytes(data)
            before = tree(outside, there)
            result = call("restore", file, "--data-dir", there)
            assert tree(outside, there) == before, f"{name}: {result.output}"
            assert {path.name for path in tmp_path.iterdir()} == {
                *("outside", "there", "hostile.tar.gz", "data", "good.tar.gz")
            }
            if result.exit_code != 1 or isinstance(result.exception, (RecursionError, MemoryError)):
                restored.append(name)
            assert "Traceback" not in result.output
    assert restored == []
    good = write_backup(file, backup)
    assert call("restore", good, "--data-dir", there).exit_code == 0


@pytest.mark.parametrize("kind", ["trigger", "view", "virtual", "index", "empty", "text", "newer"])
def test_a_database_that_is_not_ours_is_not_restored(
    tmp_path: Path, outside: Path, backup: dict[str, bytes], kind: str
) -> None:
    changes = {
        "trigger": "CREATE TRIGGER t AFTER INSERT ON users BEGIN DELETE FROM users; END",
        "view": "CREATE VIEW v AS SELECT 1",
        "virtual": "CREATE VIRTUAL TABLE v USING fts5(a)",
        "index": "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 2"
        " WHERE type = 'index'",
        "newer": "PRAGMA user_version = 9999",
    }
    database = tmp_path / "agentsvc.db"
    database.write_bytes(backup["agentsvc.db"])
    if kind in changes:
        connection = sqlite3.connect(database)
        connection.executescript(changes[kind])
        connection.close()
    else:
        database.write_bytes(b"" if kind == "empty" else b"no database" * 1000)
    backup["agentsvc.db"] = database.read_bytes()
    there = tmp_path / "there"
    result = call(
        "restore", write_backup(tmp_path / "b.tar.gz", backup), "--data-dir", there / "deep"
    )
    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert not there.exists()
    assert tree(outside) == tree(outside)


@pytest.mark.parametrize("name", ["master.key", "instance-id", "archives"])
def test_a_restore_overwrites_nothing_that_is_there(
    tmp_path: Path, backup: dict[str, bytes], name: str
) -> None:
    file, there = write_backup(tmp_path / "b.tar.gz", backup), tmp_path / "there"
    there.mkdir(mode=0o755)
    if name == "archives":
        (there / name).mkdir()
        (there / name / "one").write_text("kept")
    else:
        (there / name).write_text("kept")
    before = tree(there)
    result = call("restore", file, "--data-dir", there)
    assert (result.exit_code, name in result.stderr) == (1, True)
    assert tree(there) == before


def test_a_backup_with_an_archive_that_leads_outside_is_refused(
    tmp_path: Path, outside: Path, backup: dict[str, bytes]
) -> None:
    bad = tmp_path / "bad.zst"
    with zstd.open(bad, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        info = tarfile.TarInfo("out")
        info.type, info.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(info)
    backup[f"archives/{'0' * 32}.tar.zst"] = bad.read_bytes()
    there = tmp_path / "there"
    result = call("restore", write_backup(tmp_path / "b.tar.gz", backup), "--data-dir", there)
    assert (result.exit_code, "saved workspace" in result.stderr) == (1, True)
    assert not there.exists()


def extracted(file: Path, directory: Path) -> None:
    """Unpack an archive as a sandbox does."""
    tar = directory.with_name("archive.tar")
    tar.write_bytes(b"".join(read_parts(file)))
    subprocess.run(
        ["tar", "--no-same-owner", "-C", directory, "-xf", tar],
        check=True,
        capture_output=True,
    )


@pytest.mark.timeout(300)
def test_what_is_kept_of_a_hostile_workspace_stays_in_the_directory(
    tmp_path: Path, outside: Path
) -> None:
    packed, kept, place = tmp_path / "in", tmp_path / "out", tmp_path / "place"
    refused = []
    for name, data in hostile_tars(outside):
        packed.write_bytes(data)
        try:
            repack(packed, kept, BOUNDS)
        except ArchiveRefused:
            refused.append(name)
        else:
            tarball.check(kept, BOUNDS)
            place.mkdir()
            before = tree(outside)
            extracted(kept, place)
            assert tree(outside) == before, name
            for path in place.rglob("*"):
                mode = path.lstat().st_mode
                assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), name
                assert stat.S_ISLNK(mode) or not mode & 0o7000, name
                if stat.S_ISLNK(mode):  # one to itself leads nowhere
                    assert os.path.realpath(path).startswith(str(place)), name
            subprocess.run(["rm", "-rf", place], check=True)  # deeper than Python goes
    assert {"cut off", "random bytes", "16 GiB of zeros", "20,000 empty files"} <= set(refused)
    assert {"absolute link", "fifo", "file with rights of its owner"}.isdisjoint(refused)


@pytest.mark.timeout(300)
def test_hostile_workspaces_are_downloaded_without_what_leads_outside(outside: Path) -> None:
    for name, data in hostile_tars(outside):
        try:
            found = zipfile.ZipFile(io.BytesIO(to_zip(data)))
        except AgentsvcError:
            continue
        for entry in found.infolist():
            assert not entry.filename.startswith("/"), name
            assert ".." not in entry.filename.split("/"), name
            if stat.S_ISLNK(entry.external_attr >> 16):
                end = posixpath.join(posixpath.dirname(entry.filename), found.read(entry).decode())
                assert not posixpath.normpath(end).startswith(("/", "..")), name


@pytest.mark.timeout(300)
def test_hostile_workspaces_are_not_brought_back(outside: Path) -> None:
    for name, data in hostile_tars(outside):
        try:
            found = dict(read_files(data))
        except CommandFailed:
            continue
        assert not [one for one in found if one.startswith("/") or ".." in one.split("/")], name
        assert not [one for one in found if one.endswith(f"/{PLANTED}") and "outside" in one], name


def test_no_repository_that_an_agent_made_is_brought_back() -> None:
    # What its configuration names would be run by the next `git status` there.
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in (".git/config", "sub/.git/config", "./sub/.GIT/hooks/x", "sub/.git", "a.git/f"):
            archive.addfile(tarfile.TarInfo(name))
    assert [name for name, _ in read_files(packed.getvalue())] == ["a.git/f"]


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.CONTTYPE, b"?"])
def test_a_saved_workspace_that_unpacks_to_too_much_is_refused_early(
    tmp_path: Path, kind: bytes
) -> None:
    info = tarfile.TarInfo("file")
    info.type, info.size = kind, 64 * 1024**2
    file = tmp_path / "saved"
    with zstd.open(file, "wb") as opened:
        opened.write(info.tobuf() + bytes(info.size + 4 * 512))
    with pytest.raises(ArchiveRefused, match="exceeds the limit for archives"):
        tarball.check(file, UnpackLimits(unpacked_bytes=1024**2, files=10))


def deep_workspace(levels: int, files: int) -> bytes:
    """Return a packed workspace of empty files, so many directories deep."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for number in range(files):
            archive.addfile(tarfile.TarInfo(f"{number}/{'d/' * levels}f"))
    return packed.getvalue()


def test_files_that_are_very_deep_are_left_out_and_cost_little(tmp_path: Path) -> None:
    packed, kept = tmp_path / "in", tmp_path / "out"
    bounds = UnpackLimits(unpacked_bytes=10**9, files=10**6)
    packed.write_bytes(deep_workspace(2000, 1000))
    began = time.process_time()
    contents = repack(packed, kept, bounds)
    assert (contents.files, contents.skipped) == (0, 1000)
    packed.write_bytes(deep_workspace(200, 1000))
    contents = repack(packed, kept, bounds)
    assert (contents.files, contents.skipped) == (1000, 0)
    assert time.process_time() - began < 5


def test_a_workspace_with_too_much_in_names_is_not_made_a_zip_file() -> None:
    names = (f"{number:05}/{'/'.join(['d' * 250] * 15)}" for number in range(10_000))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(AgentsvcError, match="too large"):
        to_zip(packed.getvalue())


def test_a_workspace_of_too_many_files_is_not_made_a_zip_file() -> None:
    packed = gzip.compress(200_001 * tarfile.TarInfo("file").tobuf() + bytes(1024), 1)
    with pytest.raises(AgentsvcError, match="too large"):
        to_zip(packed)


@pytest.fixture
def holes(tmp_path: Path) -> Iterator[Path]:
    """Give a directory with a file of terabytes of which there are two pages."""
    directory = tmp_path / "holes"
    directory.mkdir()
    file = directory / "disk.img"
    with file.open("wb") as opened:
        opened.truncate(TERABYTES)
        opened.seek(10**12)
        opened.write(b"content")
    yield directory
    file.unlink()


def test_a_sparse_file_of_terabytes_costs_what_is_in_it(tmp_path: Path, holes: Path) -> None:
    packed, kept, place = tmp_path / "in", tmp_path / "out", tmp_path / "place"
    place.mkdir()
    subprocess.run(
        ["tar", "--sparse", "-C", holes, "-czf", packed, "."],
        check=True,
    )
    contents = repack(packed, kept, BOUNDS)
    tarball.check(kept, BOUNDS)
    extracted(kept, place)
    assert (contents.files, contents.skipped, contents.unpacked_bytes < 10_000) == (1, 0, True)
    file = place / "disk.img"
    assert (file.stat().st_size, file.stat().st_blocks < 64) == (TERABYTES, True)
    with file.open("rb") as opened:
        opened.seek(10**12 - 2)
        assert opened.read(11) == b"\0\0content\0\0"
    with pytest.raises(AgentsvcError, match="too large"):
        to_zip(packed.read_bytes())


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_file_with_holes_is_the_same_afterwards(tmp_path: Path, form: str) -> None:
    """Also one of so many parts that its map has blocks of its own."""
    source, place = tmp_path / "source", tmp_path / "place"
    packed, kept = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    place.mkdir()
    data = b"".join((os.urandom(4096) if n % 2 else bytes(4096)) for n in range(101)) + bytes(9999)
    with (source / "f").open("wb") as opened:
        for at in range(0, len(data), 4096):
            part = data[at : at + 4096]
            opened.seek(at)
            if part.strip(b"\0"):
                opened.write(part)
        opened.truncate(len(data))
    subprocess.run(
        ["tar", f"--format={form}", "--sparse", "-C", source, "-czf", packed, "."],
        check=True,
    )
    contents = repack(packed, kept, BOUNDS)
    assert contents.unpacked_bytes < len(data)
    extracted(kept, place)
    assert (place / "f").read_bytes() == data
    assert zipfile.ZipFile(io.BytesIO(to_zip(packed.read_bytes()))).read("f") == data
    assert dict(read_files(packed.read_bytes()))["f"][0] == data


def test_a_workspace_of_every_kind_that_tar_writes_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / ("long" * 50)).mkdir(parents=True)
    (source / "a" / ("long" * 50) / ("name" * 50)).write_text("deep")
    (source / "ü\n").write_text("name")
    Path(os.fsdecode(bytes(source / "x") + b"\xff")).write_text("no UTF-8")
    (source / "link").symlink_to("a/../ü\n")
    (source / "up").mkdir()
    (source / "up" / "link").symlink_to("../a/./b")
    (source / "twin").hardlink_to(source / "ü\n")
    (source / "old").write_text("before 1970")
    os.utime(source / "old", (-5000, -5000))
    for form in ("gnu", "posix", "oldgnu", "pax"):
        packed, kept, place = tmp_path / "in", tmp_path / "out", tmp_path / form
        place.mkdir()
        subprocess.run(
            ["tar", f"--format={form}", "-C", source, "-czf", packed, "."],
            check=True,
        )
        contents = repack(packed, kept, BOUNDS)
        # The one link is left out that goes up behind a name.
        assert (contents.files, contents.skipped) == (9, 1)
        extracted(kept, place)
        names = {os.fsencode(path.relative_to(source)) for path in source.rglob("*")}
        found = {os.fsencode(path.relative_to(place)) for path in place.rglob("*")}
        assert names - found == {b"link"}
        assert (place / "twin").stat().st_nlink == 2


def test_headers_are_read_without_depth(tmp_path: Path) -> None:
    """Ten thousand of them in a row were ten thousand calls in one another."""
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    packed = tmp_path / "in"
    packed.write_bytes(gzip.compress(info.tobuf() * 10_000 + bytes(1024)))
    with pytest.raises(ArchiveRefused, match="not a complete archive"):
        repack(packed, tmp_path / "out", BOUNDS)
