"""What becomes of archives that sandboxes send: the good ones, and those made to do harm."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentsvc.base.errors import ArchiveRefused
from agentsvc.conversations.archives.tarball import Contents, UnpackLimits, read_parts, repack

BOUNDS = UnpackLimits(unpacked_bytes=1_000_000, files=100)

type Fill = Callable[[tarfile.TarFile], None]


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def add(tar: tarfile.TarFile, name: str, data: bytes = b"text", mode: int = 0o644) -> None:
    info = entry(name, mode=mode)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def pack(folder: Path, fill: Fill) -> tuple[Path, Path]:
    source, target = folder / "in.tar.gz", folder / "out.tar.zst"
    with tarfile.open(source, "w:gz") as tar:
        fill(tar)
    return source, target


def members(target: Path) -> dict[str, tarfile.TarInfo]:
    whole = io.BytesIO(b"".join(read_parts(target)))
    with tarfile.open(fileobj=whole, mode="r:") as tar:
        return {info.name: info for info in tar.getmembers()}


def repacked(folder: Path, fill: Fill) -> tuple[dict[str, tarfile.TarInfo], Contents]:
    source, target = pack(folder, fill)
    contents = repack(source, target, BOUNDS)
    return members(target), contents


def test_files_directories_and_links_inside_are_kept(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        tar.addfile(entry("./", tarfile.DIRTYPE))
        tar.addfile(entry("./src", tarfile.DIRTYPE, mode=0o755))
        add(tar, "./src/run.sh", b"#!/bin/sh\n", 0o755)
        tar.addfile(entry("./src/twin", tarfile.LNKTYPE, link="./src/run.sh"))
        tar.addfile(entry("./start", tarfile.SYMTYPE, link="src/run.sh"))
        add(tar, "./" + "long/" * 60 + "name")

    found, contents = repacked(tmp_path, fill)
    assert {"src", "src/run.sh", "src/twin", "start", "long/" * 60 + "name"} == set(found)
    assert found["src/run.sh"].mode == 0o755
    assert (found["start"].linkname, found["src/twin"].linkname) == ("src/run.sh", "src/run.sh")
    assert contents == Contents(unpacked_bytes=14, files=5, skipped=0)


@pytest.mark.parametrize(
    "harm",
    [
        entry("/etc/passwd"),
        entry("../outside"),
        entry("a/../../outside"),
        entry("out", tarfile.SYMTYPE, link="/etc"),
        entry("out", tarfile.SYMTYPE, link="../.."),
        entry("a/out", tarfile.SYMTYPE, link="../../x"),
        entry("twin", tarfile.LNKTYPE, link="/etc/passwd"),
        entry("twin", tarfile.LNKTYPE, link="../outside"),
        entry("twin", tarfile.LNKTYPE, link="not/there"),
        entry("null", tarfile.CHRTYPE),
        entry("disk", tarfile.BLKTYPE),
        entry("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name}>{info.linkname or info.type!r}",
)
def test_what_leads_out_or_is_special_is_left_out(tmp_path: Path, harm: tarfile.TarInfo) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        tar.addfile(harm)
        add(tar, "good")

    found, contents = repacked(tmp_path, fill)
    assert list(found) == ["good"]
    assert (contents.files, contents.skipped) == (1, 1)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        tar.addfile(entry("inside", tarfile.DIRTYPE))
        tar.addfile(entry("link", tarfile.SYMTYPE, link="inside"))
        add(tar, "link/file")
        add(tar, "link")

    found, contents = repacked(tmp_path, fill)
    assert set(found) == {"inside", "link"}
    assert found["link"].issym()
    assert contents.skipped == 2


def test_special_rights_and_owners_are_taken_away(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        info = entry("tool", mode=0o6755)
        info.uid, info.gid, info.uname = 1234, 1234, "somebody"
        tar.addfile(info)
        tar.addfile(entry("closed", tarfile.DIRTYPE, mode=0o1000))

    found, _ = repacked(tmp_path, fill)
    assert found["tool"].mode == 0o755
    assert (found["tool"].uid, found["tool"].gid, found["tool"].uname) == (0, 0, "")
    assert found["closed"].mode == 0o700


def test_too_many_files_and_too_many_bytes_are_refused(tmp_path: Path) -> None:
    def many(tar: tarfile.TarFile) -> None:
        for number in range(101):
            add(tar, f"file {number}")

    def large(tar: tarfile.TarFile) -> None:
        add(tar, "large", bytes(1_000_001))

    for fill in (many, large):
        with pytest.raises(ArchiveRefused, match="exceeds the limit for archives"):
            repack(*pack(tmp_path, fill), BOUNDS)


def test_a_bomb_is_refused_before_it_fills_anything(tmp_path: Path) -> None:
    source, target = tmp_path / "bomb", tmp_path / "out"
    info = entry("../left out")
    info.size = 200_000_000
    with gzip.open(source, "wb", compresslevel=1) as out:
        out.write(info.tobuf())
        for _ in range(200):
            out.write(bytes(1_000_000))
    with pytest.raises(ArchiveRefused, match="exceeds the limit for archives"):
        repack(source, target, BOUNDS)
    assert target.stat().st_size < 10_000


def test_a_header_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "in"
    info = entry("x", tarfile.XHDTYPE)
    info.size = 500_000
    with gzip.open(source, "wb") as out:
        out.write(info.tobuf(tarfile.USTAR_FORMAT))
        out.write(bytes(500_224))
    with pytest.raises(ArchiveRefused, match="not a complete archive"):
        repack(source, tmp_path / "out", BOUNDS)


@pytest.mark.parametrize("size", ["-5", "-16384"])
def test_a_negative_size_in_an_extended_header_is_refused(tmp_path: Path, size: str) -> None:
    source = tmp_path / "in"
    info = entry("x")
    info.pax_headers = {"size": size}
    with gzip.open(source, "wb") as out:
        out.write(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(ArchiveRefused, match="not a complete archive"):
        repack(source, tmp_path / "out", BOUNDS)


@pytest.mark.parametrize("length", [0, 5, 30, -20])
def test_what_is_broken_off_or_no_archive_is_refused(tmp_path: Path, length: int) -> None:
    source, target = pack(tmp_path, lambda tar: add(tar, "file", bytes(range(256)) * 40))
    whole = source.read_bytes()
    source.write_bytes(whole[:length] if length else b"this is no archive at all")
    with pytest.raises(ArchiveRefused, match="not a complete archive"):
        repack(source, target, BOUNDS)
