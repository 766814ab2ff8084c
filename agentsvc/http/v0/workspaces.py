"""Access to the workspace of a conversation for V0.

Stateless: each call is forwarded to the agent server of the conversation's sandbox.
"""

import asyncio
import io
import posixpath
import stat
import zipfile
from collections.abc import AsyncIterable, AsyncIterator
from shlex import quote
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer, KeyRefused, ServerFault
from agentsvc.base import errors
from agentsvc.storage import (
    SPARSE,
    BadTar,
    Gunzip,
    Member,
    MemberKind,
    TarStream,
    safe_name,
    stays_inside,
)

UPLOAD_MAX_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of an uploaded file."""

PACKED_MAX_BYTES: Final = 48 * 1024 * 1024
"""Maximum compressed size of a workspace to download."""

_UNPACKED_MAX_BYTES: Final = 1024 * 1024 * 1024
_MEMBERS_MAX: Final = 200_000
_NAMES_CHARS_MAX: Final = 32 * 1024 * 1024
"""Maximum total length of the file names of a workspace, which are kept in memory."""
_LIST_SECONDS: Final = 20.0
_PACK_SECONDS: Final = 100.0
_HIDDEN: Final = frozenset(
    {".git/", ".DS_Store", "node_modules/", "__pycache__/", "lost+found/", ".vscode/"}
)
_SEPARATOR: Final = "//"
_TOO_LARGE: Final = 4

# No listed name starts with a slash, so the separator line `//` cannot be a name.
_LIST: Final = """
cd -- {folder} 2>/dev/null || exit 0
ls -1Ap
echo //
ls -1Ap | git -c core.quotePath=false check-ignore --stdin 2>/dev/null
exit 0
"""

_PACK: Final = f"""
file=$(mktemp) || exit $?
tar -czf "$file" {SPARSE} -C {{folder}} .
if [ $? -gt 1 ]; then rm -f "$file"; exit 3; fi
if [ $(wc -c <"$file") -gt {{limit}} ]; then rm -f "$file"; exit 4; fi
printf %s "$file"
"""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not written, with the reason."""

    name: str
    """Name of the file"""
    reason: str
    """Why the file was not written, for people"""


class WorkspaceFiles:
    """The workspace of one conversation."""

    def __init__(self, agent: AgentServer, root: str) -> None:
        self._agent = agent
        self._root = root

    def locate(self, path: str) -> str:
        """Return the absolute path of a file; raises BadRequest outside of the workspace."""
        found = posixpath.normpath(posixpath.join(self._root, path))
        if found != self._root and not found.startswith(self._root.rstrip("/") + "/"):
            raise errors.BadRequest("The path is outside of the workspace")
        return found

    async def list_files(self, path: str) -> list[str]:
        """List a directory: directories with a trailing slash, then files.

        Files ignored by git are omitted; a directory that does not exist is listed as empty.
        """
        command = _LIST.format(folder=quote(self.locate(path)))
        listing = await self._agent.read_listing(command, time_limit=_LIST_SECONDS)
        prefix = posixpath.relpath(self.locate(path), self._root) + "/"
        return [("" if prefix == "./" else prefix) + name for name in sort_names(listing)]

    async def read_text(self, path: str) -> str:
        """Read a text file; raises NotFound, BadRequest, UnsupportedMediaType for a binary file."""
        try:
            data = await self._agent.download(self.locate(path))
        except errors.NotFound as exc:
            raise errors.NotFound(f"Error opening file: File not found: {path}") from exc
        except errors.AgentRefused as exc:
            raise errors.BadRequest(f"Error opening file: {path}", detail=exc.message) from exc
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise errors.UnsupportedMediaType(f"Unable to open binary file: {path}")
        return text

    async def write(self, name: str, parts: AsyncIterable[bytes]) -> str | Skipped:
        """Stream a file to the workspace and return its path, or why it was skipped.

        Directories in the name are dropped. Raises AgentUnavailable or KeyRefused.
        """
        shown = name.replace("\\", "/").rsplit("/", 1)[-1]
        if shown in ("", ".", "..") or not shown.isprintable():
            legible = name.encode(errors="replace").decode()
            return Skipped(name=legible, reason="The name of the file is not allowed")
        path = self.locate(shown)
        meter = _Meter(parts)
        try:
            await self._agent.upload(path, meter.parts())
        except KeyRefused:
            raise
        except (errors.AgentRefused, ServerFault) as exc:
            return Skipped(name=shown, reason=exc.message)
        except errors.AgentUnavailable:
            if not meter.is_over:
                raise
            reason = f"The file has more than {UPLOAD_MAX_BYTES} bytes"
            return Skipped(name=shown, reason=reason)
        return path

    async def pack(self) -> bytes:
        """Return the whole workspace as a zip file; raises Conflict if it is too large."""
        command = _PACK.format(folder=quote(self._root), limit=PACKED_MAX_BYTES)
        result = await self._agent.run_command(command, time_limit=_PACK_SECONDS)
        if result.exit_code == _TOO_LARGE:
            raise errors.Conflict("The workspace is too large to be downloaded as a whole")
        if result.exit_code != 0:
            raise errors.AgentRefused("The workspace cannot be packed", detail=result.stderr)
        try:
            packed = await self._agent.download(result.stdout)
        finally:
            await self._agent.run_command(
                f"rm -f -- {quote(result.stdout)}", time_limit=_LIST_SECONDS
            )
        return await asyncio.to_thread(to_zip, packed)


def sort_names(listing: str) -> list[str]:
    """Return the sorted names of a listing, without the ignored names after the separator."""
    names, _, ignored = listing.partition(f"{_SEPARATOR}\n")
    left_out = _HIDDEN | {"", *ignored.split("\n")}
    shown = [name for name in names.split("\n") if name not in left_out]
    return sorted(shown, key=lambda name: (not name.endswith("/"), name.lower(), name))


def to_zip(packed: bytes) -> bytes:
    """Convert a gzipped tar file to a zip file, dropping entries that point out of the workspace.

    Raises Conflict if it is too large unpacked, AgentRefused for an invalid or truncated tar file.
    """
    out = io.BytesIO()
    left, names_left = _UNPACKED_MAX_BYTES, _NAMES_CHARS_MAX
    source, names = TarStream(Gunzip(io.BytesIO(packed))), {"."}
    try:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
            for number, member in enumerate(source):
                left -= member.size
                names_left -= len(member.name)
                if min(left, names_left) < 0 or number >= _MEMBERS_MAX:
                    raise errors.Conflict("The workspace is too large to be downloaded as a whole")
                name = safe_name(member.name)
                if name is not None and name not in names:
                    names.add(name)
                    _copy(member, name, source, target)
    except BadTar as exc:
        raise errors.AgentRefused("The workspace cannot be packed", detail=str(exc)) from exc
    return out.getvalue()


_MODES: Final = {
    MemberKind.FILE: stat.S_IFREG,
    MemberKind.DIRECTORY: stat.S_IFDIR,
    MemberKind.SYMLINK: stat.S_IFLNK,
}


def _copy(member: Member, name: str, source: TarStream, target: zipfile.ZipFile) -> None:
    if member.kind not in _MODES:
        return
    # A zip file can only have Unicode names.
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    entry = zipfile.ZipInfo(f"{name}/" if member.kind is MemberKind.DIRECTORY else name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (_MODES[member.kind] | (member.mode & 0o777)) << 16
    if member.kind is MemberKind.SYMLINK:
        if stays_inside(name, member.target):
            target.writestr(entry, member.target.encode("utf-8", "surrogateescape"))
        return
    with target.open(entry, "w") as opened:
        for part in source.parts(member):
            opened.write(part)


class _Meter:
    """Counts the bytes of a streamed file and raises OSError above UPLOAD_MAX_BYTES."""

    def __init__(self, parts: AsyncIterable[bytes]) -> None:
        self._parts = parts
        self.is_over = False

    async def parts(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._parts:
            size += len(part)
            if size > UPLOAD_MAX_BYTES:
                self.is_over = True
                raise OSError("the file is too large")
            yield part
