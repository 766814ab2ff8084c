"""Archives made to harm whoever unpacks them, and what shows that one did.

`hostile_tars` yields them all, each with a name that says what it tries. They aim at a directory
`outside`, in which `plant` puts something to lose, and `tree` tells whether anything changed.
"""

import gzip
import hashlib
import io
import os
import tarfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

BLOCK: Final = tarfile.BLOCKSIZE
UP: Final = "../" * 40
"""Leads to the root from everywhere."""
VICTIM: Final = "victim"
"""The file in `outside` that links lead to."""
PLANTED: Final = "planted"
"""The file that an archive which gets through leaves in `outside`."""
TERABYTES: Final = 3 * 1024**4

_EVIL: Final = b"written by a hostile archive\n"
_PATH_MAX: Final = 4096

type Case = tuple[str, bytes]
type Entries = list[tuple[tarfile.TarInfo, bytes]]


def plant(outside: Path) -> None:
    """Put something to lose into a directory that no archive may touch."""
    outside.mkdir(parents=True, exist_ok=True)
    (outside / VICTIM).write_text("as it was\n")
    (outside / VICTIM).chmod(0o640)
    (outside / "directory").mkdir(mode=0o750, exist_ok=True)


def tree(*roots: Path) -> dict[str, tuple[object, ...]]:
    """Return what is below some directories: kind, mode, owner, time, links and contents of each."""
    found: dict[str, tuple[object, ...]] = {}
    for root in roots:
        for path in (root, *root.rglob("*")):
            seen = path.lstat()
            content = ""
            if path.is_symlink():
                content = str(path.readlink())
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            time = 0 if path.is_dir() else seen.st_mtime_ns
            found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_nlink, time, content)
    return found


def hostile_tars(
    outside: Path, *, first: Mapping[str, bytes] | None = None, below: str = ""
) -> Iterator[Case]:
    """Yield the name and the bytes (tar.gz) of each hostile archive.

    `first` are plain files that each begins with, such as those of a good backup. What is hostile
    lies below `below`, such as `archives`.
    """
    head = _plain(first or {})
    under = f"{below}/" if below else ""
    for source in (_names, _links, _long_links, _kinds, _overrides, _repeats):
        for name, entries in source(outside, under):
            yield name, gzip.compress(_tar(head + entries), 1)
    for name, raw in _raw(under):
        yield name, gzip.compress(_tar(head, is_whole=False) + raw, 1)
    yield from _bombs(_tar(head, is_whole=False), under)
    yield from _broken(_tar([*head, *_plain({f"{under}{PLANTED}": _EVIL * 1000})]))


# Members


def _file(name: str, data: bytes = _EVIL, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, data=data, **fields)


def _member(
    name: str, kind: bytes = tarfile.REGTYPE, *, data: bytes = b"", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, len(data), 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def _link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.SYMTYPE, linkname=target)


def _hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.LNKTYPE, linkname=target)


def _directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return _member(name, tarfile.DIRTYPE, mode=mode)


def _plain(files: Mapping[str, bytes]) -> Entries:
    return [_file(name, data) for name, data in files.items()]


def _tar(entries: Entries, *, is_whole: bool = True) -> bytes:
    out = io.BytesIO()
    for info, data in entries:
        out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        out.write(data + bytes(-len(data) % BLOCK))
    if is_whole:
        out.write(bytes(2 * BLOCK))
    return out.getvalue()


# Cases made of members


def _names(outside: Path, under: str) -> Iterator[tuple[str, Entries]]:
    there = str(outside / PLANTED)
    relative = there.lstrip("/")
    names = {
        "absolute name": there,
        "absolute name with slashes": f"//{there}",
        "parents": f"{under}{UP}{relative}",
        "parents first": f"{UP}{relative}",
        "parents in the middle": f"{under}a/b/../../../../{PLANTED}",
        "parents as the last part": f"{under}a/..",
        "parents behind a dot": f"./{under}./{UP}{relative}",
        "a name with a backslash": f"{under}..\\..\\{PLANTED}",
        "a name with a line feed": f"{under}a\nb",
        "a name with a terminal's escape": f"{under}\x1b]0;x\x07",
        "a name that is not UTF-8": f"{under}\udcff\udcfe",
        "a name that is too long for a file": under + "n" * 300,
        "a path that is too long": under + "d/" * 3000 + "f",
        "a path of many directories": under + "d/" * 900 + "f",
        "an unknown name": "unknown",
        "a name like one of the server's": "command-key",
        "a lock": "lock",
        "a directory too deep": f"{under}a/b/c",
        "no name": "",
        "the root": "/",
        "only parents": "..",
        "only a dot": f"{under}.",
    }
    for what, name in names.items():
        yield what, [_file(name)]


def _links(outside: Path, under: str) -> Iterator[tuple[str, Entries]]:
    there = str(outside)
    far = f"{UP}{there.lstrip('/')}"
    yield "absolute link", [_link(f"{under}l", there), _file(f"{under}l/{PLANTED}")]
    yield "relative link", [_link(f"{under}l", far), _file(f"{under}l/{PLANTED}")]
    yield (
        "link to a file",
        [_link(f"{under}l", f"{there}/{VICTIM}"), _file(f"{under}l")],
    )
    yield (
        "chain of links",
        [
            _link(f"{under}a", "b"),
            _link(f"{under}b", "c"),
            _link(f"{under}c", far),
            _file(f"{under}a/{PLANTED}"),
        ],
    )
    yield (
        "links through links",
        [
            _directory(f"{under}a"),
            _link(f"{under}a/b", ".."),
            _link(f"{under}c", f"a/b/{far}"),
            _file(f"{under}c/{PLANTED}"),
        ],
    )
    yield (
        "hard link through a link",
        [
            _link(f"{under}l", there),
            _hard(f"{under}h", f"{under}l/{VICTIM}"),
            _file(f"{under}h"),
        ],
    )
    yield (
        "hard link outside",
        [_hard(f"{under}h", f"{there}/{VICTIM}"), _file(f"{under}h")],
    )
    yield (
        "hard link by parents",
        [_hard(f"{under}h", f"{far}/{VICTIM}"), _file(f"{under}h")],
    )
    yield "link that is read", [_link(f"{under}{'0' * 32}.tar.zst", "/etc/passwd")]
    yield (
        "link to a file of the server",
        [_link(f"{under}l", "../agentsvc.db"), _file(f"{under}l")],
    )
    yield (
        "directory becomes a link",
        [
            _directory(f"{under}d"),
            _file(f"{under}d/f"),
            _link(f"{under}d", there),
            _file(f"{under}d/{PLANTED}"),
        ],
    )
    yield (
        "mode of a directory through a link",
        [_link(f"{under}d", f"{there}/directory"), _directory(f"{under}d", 0o777)],
    )
    yield "link to itself", [_link(f"{under}l", "l"), _file(f"{under}l/{PLANTED}")]
    if under:
        top = under.rstrip("/")
        yield (
            "the directory itself is a link",
            [_link(top, there), _file(f"{under}{PLANTED}")],
        )
        yield "the directory itself is a file", [_file(top), _file(f"{under}{PLANTED}")]


def _long_links(outside: Path, under: str) -> Iterator[tuple[str, Entries]]:
    """Links whose resolved path is longer than the system's limit: CVE-2025-4517 and its kin."""
    part = "d" * 247
    steps = "abcdefghijklmnop"
    entries: Entries = []
    path = under
    for step in steps:
        entries += [_directory(f"{path}{part}"), _link(f"{path}{step}", part)]
        path += f"{part}/"
    long = "/".join(steps) + "/" + "l" * 254
    entries.append(_link(f"{under}{long}", "../" * len(steps)))
    # Where the long link counts as a directory, this seems to end where it begins.
    up = "../" * len(steps)
    escape = _link(f"{under}escape", f"{long}/{up}{str(outside).lstrip('/')}")
    yield (
        "link longer than a path may be, file below it",
        [*entries, escape, _file(f"{under}escape/{PLANTED}")],
    )
    yield (
        "link longer than a path may be, hard link through it",
        [
            *entries,
            escape,
            _hard(f"{under}h", f"{under}escape/{VICTIM}"),
            _file(f"{under}h"),
        ],
    )
    assert len(path) < _PATH_MAX < len(path) + len(long)


def _kinds(outside: Path, under: str) -> Iterator[tuple[str, Entries]]:
    del outside
    for what, kind in (
        ("fifo", tarfile.FIFOTYPE),
        ("character device", tarfile.CHRTYPE),
        ("block device", tarfile.BLKTYPE),
        ("unknown kind", b"Z"),
        ("volume label", b"V"),
        ("part of a volume", b"M"),
        ("dump of a directory", b"D"),
    ):
        yield what, [_member(f"{under}special", kind, devmajor=1, devminor=3)]
    yield "file with rights of its owner", [_file(f"{under}s", mode=0o6777)]
    yield "directory that all may write", [_directory(f"{under}s", 0o7777)]
    yield "file of another owner", [_file(f"{under}s", uid=65534, gid=0, uname="root")]
    yield "file from the far future", [_file(f"{under}s", mtime=2**40)]


def _overrides(outside: Path, under: str) -> Iterator[tuple[str, Entries]]:
    """Members whose real name, target or size is in an extended header."""
    there = str(outside / PLANTED)
    victim = str(outside / VICTIM)

    def pax(kind: bytes = tarfile.XHDTYPE, **records: str) -> tuple[tarfile.TarInfo, bytes]:
        return _member("pax", kind, data=_records(records))

    yield "extended path", [pax(path=there), _file(f"{under}plain")]
    yield "global path", [pax(tarfile.XGLTYPE, path=there), _file(f"{under}plain")]
    yield (
        "extended target",
        [pax(linkpath=victim), _link(f"{under}l", "plain"), _file(f"{under}l")],
    )
    yield "extended size below nothing", [pax(size="-4096"), _file(f"{under}plain")]
    yield "extended size without end", [pax(size="9" * 30), _file(f"{under}plain")]
    yield "extended size that is no number", [pax(size="1e9"), _file(f"{under}plain")]
    yield "extended path with a zero", [pax(path="a\0b"), _file(f"{under}plain")]
    for what, kind in (("name", tarfile.GNUTYPE_LONGNAME), ("target", tarfile.GNUTYPE_LONGLINK)):
        long = _member("././@LongLink", kind, data=there.encode() + b"\0")
        link = _link(f"{under}l", "plain") if what == "target" else _file(f"{under}plain")
        yield f"long {what}", [long, link, _file(f"{under}l")]
    yield (
        "long name of a megabyte",
        [
            _member("././@LongLink", tarfile.GNUTYPE_LONGNAME, data=b"n" * 2**20),
            _file(f"{under}plain"),
        ],
    )
    yield "extended header of 4 MiB", [pax(comment="c" * 2**22), _file(f"{under}plain")]
    yield (
        "extended header that is none",
        [_member("pax", tarfile.XHDTYPE, data=b"99999999999 path=x\n"), _file(f"{under}plain")],
    )
    yield (
        "extended header of digits",
        [_member("pax", tarfile.XHDTYPE, data=b"1" * 60_000), _file(f"{under}plain")],
    )
    yield "extended headers only", [pax(comment="c")] * 3
    yield "ten thousand extended headers", [*[pax(comment="c")] * 10_000, _file(f"{under}plain")]
    yield from _sparse(there, under)


def _sparse(there: str, under: str) -> Iterator[tuple[str, Entries]]:
    def entries(table: bytes, size: int = TERABYTES, name: str = f"{under}holes") -> Entries:
        records = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": name,
            "GNU.sparse.realsize": str(size),
        }
        return [
            _member("pax", tarfile.XHDTYPE, data=_records(records)),
            _file("GNUSparseFile.0/holes", table + bytes(-len(table) % BLOCK)),
        ]

    yield "sparse file with an absolute name", entries(b"1\n0\n0\n", name=there)
    yield "sparse file with more parts than it has", entries(b"1000000000\n0\n0\n")
    yield "sparse file with parts that overlap", entries(b"2\n0\n10\n5\n10\n" + b"x" * 20)
    yield "sparse file with a part below nothing", entries(b"1\n-5\n10\n")
    yield "sparse file with a part behind its end", entries(b"1\n0\n4096\n", size=10)
    yield "sparse file without a map", entries(b"no map")
    yield (
        "old sparse file with a map that is none",
        [
            _member("pax", tarfile.XHDTYPE, data=_records({"GNU.sparse.map": "0,1,a"})),
            _file(f"{under}holes"),
        ],
    )


def _repeats(outside: Path, under: str) -> Iterator[tuple[str, Entries]]:
    del outside
    twice = {
        "same name twice": ("same", "same"),
        "same name with a detour": ("same", "./same"),
        "same name in capitals": ("same", "SAME"),
        "same name composed in another way": (
            unicodedata.normalize("NFC", "é"),
            unicodedata.normalize("NFD", "é"),
        ),
    }
    for what, names in twice.items():
        yield what, [_file(f"{under}{name}") for name in names]
    yield "file below a file", [_file(f"{under}f"), _file(f"{under}f/g")]
    yield (
        "a second database",
        [_file("agentsvc.db"), _file("./agentsvc.db"), _file("AGENTSVC.DB")],
    )


# Cases made of bytes


def _raw(under: str) -> Iterator[Case]:
    info, _ = _file(f"{under}f")

    def changed(change: Callable[[bytearray], None], *, is_summed: bool = True) -> bytes:
        block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
        change(block)
        if is_summed:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
        return bytes(block) + bytes(4 * BLOCK)

    def size(data: bytes) -> Callable[[bytearray], None]:
        return lambda block: block.__setitem__(slice(124, 136), data)

    yield "size below nothing", changed(size(b"\xff" * 12))
    # Each would make room for gigabytes that come afterwards.
    below = changed(size(b"-77777777000"))[:BLOCK]
    yield (
        "sizes below nothing in digits",
        500 * below + _old_sparse(under, TERABYTES, [(0, 512)], 512),
    )
    yield "size of the whole world", changed(size(b"\x80" + b"\xff" * 11))
    yield "size that is no number", changed(size(b"99999999999 "))
    yield "size larger than what comes", changed(size(b"77777777777\0"))
    yield (
        "sum of a header that is wrong",
        changed(lambda block: block.__setitem__(0, 0x41), is_summed=False),
    )
    yield "old sparse header", _old_sparse(under, TERABYTES, [(0, 512)], 512)
    yield "old sparse header of overlapping parts", _old_sparse(under, 1024, [(0, 512)] * 3, 1536)
    yield "old sparse header without end", _old_sparse(under, 512, [(0, 512)], 512, more=True)


def _old_sparse(
    under: str, real: int, parts: list[tuple[int, int]], size: int, *, more: bool = False
) -> bytes:
    """Return a member in the way GNU tar wrote sparse files before there were extended headers."""
    info, _ = _member(f"{under}holes", tarfile.GNUTYPE_SPARSE)
    info.size = size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for number, (offset, length) in enumerate(parts):
        at = 386 + number * 24
        block[at : at + 24] = b"%011o\0%011o\0" % (offset, length)
    block[482] = more
    block[483:495] = _number(real)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    # Where it says that there is more, each block says so again.
    tail = (bytes(504) + b"\x01" + bytes(7)) * 5000 if more else b""
    return bytes(block) + tail + bytes(size + -size % BLOCK) + bytes(2 * BLOCK)


def _number(value: int) -> bytes:
    if value < 8**11:
        return b"%011o\0" % value
    return b"\x80" + value.to_bytes(11)


def _bombs(head: bytes, under: str) -> Iterator[Case]:
    zeros = gzip.compress(bytes(2**24), 9)
    info, _ = _member(f"{under}zeros")
    info.size = 1024 * 2**24
    start = gzip.compress(head + info.tobuf(tarfile.GNU_FORMAT), 1)
    yield "16 GiB of zeros", start + zeros * 1024 + gzip.compress(bytes(2 * BLOCK))
    info.size = TERABYTES
    yield (
        "3 TiB that are announced",
        gzip.compress(head + info.tobuf(tarfile.GNU_FORMAT), 1) + zeros,
    )
    many = b"".join(_file(f"{under}{n:06d}", b"")[0].tobuf() for n in range(20_000))
    yield "20,000 empty files", gzip.compress(head + many + bytes(2 * BLOCK), 1)
    yield "a million empty gzip members", gzip.compress(head, 1) + gzip.compress(b"") * 1_000_000
    yield "zeros behind the end", gzip.compress(head + bytes(2 * BLOCK), 1) + zeros * 1024


def _broken(whole: bytes) -> Iterator[Case]:
    packed = gzip.compress(whole, 1)
    yield "cut off", packed[: len(packed) // 2]
    yield "cut off in the tar file", gzip.compress(whole[: len(whole) // 2 + 100])
    yield "without the end of gzip", packed[:-8]
    yield "with a wrong sum", packed[:-8] + os.urandom(4) + packed[-4:]
    yield "nothing", b""
    yield "an empty gzip file", gzip.compress(b"")
    yield "random bytes", os.urandom(4096)
    yield "random bytes in gzip", gzip.compress(os.urandom(40_960))
    yield "a plain tar file", whole
    yield "a zip file", b"PK\x03\x04" + bytes(200)


def _records(records: Mapping[str, str]) -> bytes:
    out = b""
    for name, value in records.items():
        body = f" {name}={value}\n".encode()
        length = len(body)
        while length != len(body) + len(str(length)):
            length = len(body) + len(str(length))
        out += str(length).encode() + body
    return out
