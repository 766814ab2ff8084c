"""Copies a local directory into a sandbox, and changed files back."""

import contextlib
import hashlib
import io
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import click

from agentsvc.base import create_private, new_id
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api
from agentsvc.cli.talk import SANDBOXES, Record, agent_path
from agentsvc.cli.text import clean, confirm
from agentsvc.storage import SPARSE, BadTar, Gunzip, MemberKind, TarStream

MAX_BYTES: Final = 256 * 1024 * 1024
_MAX_FILES: Final = 100_000
_COMMAND_SECONDS: Final = 120
_SHOWN: Final = 3
_GIT: Final = ".git"
_BARE: Final = ("HEAD", "objects", "refs")
"""Names by which git recognizes a directory as a bare repository."""

type Checksums = dict[str, str]
"""The SHA-256 of each file of a directory, by relative path."""


def upload_directory(api: Api, conversation: Record, directory: Path) -> Checksums:
    """Upload a copy of a directory into the sandbox; return the checksums of its files.

    In a git repository, files that git ignores are not copied, but `.git` is. Raises CommandFailed if
    git cannot list the files, or there are too many.
    """
    names = sorted(_list_files(directory))
    if len(names) > _MAX_FILES:
        raise CommandFailed(f"{directory} has more than {_MAX_FILES} files")
    packed, checksums = _pack(directory, names)
    _Workspace(api, conversation).upload(packed)
    return checksums


def download_changes(
    api: Api, conversation: Record, directory: Path, sent: Checksums, *, agrees: bool
) -> None:
    """Write files that the agent changed into the directory, after confirmation.

    Repository metadata is never written, not even in subdirectories, because git executes programs
    named in its configuration. Files that were not uploaded, or were changed locally since, are not
    overwritten. If something cannot be written, stores the sandbox's archive and raises CommandFailed.
    """
    packed, failure = _Workspace(api, conversation).download()
    if failure is not None:
        # The archive is incomplete, so missing files must not count as deleted.
        raise CommandFailed(failure.message, _store(packed, directory)) if packed else failure
    try:
        changed, deleted = find_changes(directory, dict(read_files(packed)), sent)
    except CommandFailed as exc:
        raise CommandFailed(exc.message, _store(packed, directory)) from exc
    if not changed and not deleted:
        click.echo("no file was changed", err=True)
        return
    for name in sorted(changed):
        click.echo(f"{'changed' if name in sent else 'new'}: {clean(name)}", err=True)
    for name in deleted:
        click.echo(f"deleted: {clean(name)}", err=True)
    question = f"Write these changes to {directory}?"
    if not agrees and not sys.stdin.isatty():
        # Keep the agent's work, which was paid for.
        hint = f"confirm with --yes; {_store(packed, directory)}"
        raise CommandFailed(f"{question.rstrip('?')}: not confirmed", hint)
    confirm(question, is_agreed=agrees)
    wanted = {name: _checksum(data) for name, (data, _) in changed.items()}
    others = {
        name
        for name in (*changed, *deleted)
        if _differs(directory / name, {sent.get(name), wanted.get(name)})
    }
    for name in sorted(others):
        click.echo(f"not overwritten, since it was changed locally: {clean(name)}", err=True)
    failures = [f"{len(others)} files were changed locally meanwhile"] if others else []
    failures += apply_changes(
        directory,
        {name: file for name, file in changed.items() if name not in others},
        [name for name in deleted if name not in others],
    )
    if failures:
        reason = f"not all changes were written to {directory}: {'; '.join(failures[:_SHOWN])}"
        raise CommandFailed(reason, _store(packed, directory))
    click.echo(f"written to {directory}", err=True)


def apply_changes(
    directory: Path, changed: Mapping[str, tuple[bytes, int]], deleted: Iterable[str]
) -> list[str]:
    """Delete files below a directory, then write changed ones; return the error messages."""
    failures: list[str] = []
    gone = list(deleted)
    for name in gone:
        with _collecting_errors(failures, name):
            remove_file(directory, name)
    for name in gone:
        if not changed.keys().isdisjoint(_parents(name)):
            _remove_empty(directory, name)
    for name, (data, mode) in changed.items():
        with _collecting_errors(failures, name):
            write_file(directory, name, data, mode)
    # Last, so that a directory that gets a new file keeps its permissions.
    for name in gone:
        _remove_empty(directory, name)
    return failures


def _remove_empty(directory: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        for path in _parents(name)[:-1]:
            (directory / path).rmdir()


@contextlib.contextmanager
def _collecting_errors(failures: list[str], name: str) -> Iterator[None]:
    try:
        yield
    except CommandFailed as exc:
        failures.append(exc.message)
    except (OSError, ValueError, RuntimeError) as exc:
        # An invalid file name, or a symlink loop.
        failures.append(f"{clean(name)}: {getattr(exc, 'strerror', None) or exc}")


def find_changes(
    directory: Path, found: Mapping[str, tuple[bytes, int]], sent: Checksums
) -> tuple[dict[str, tuple[bytes, int]], list[str]]:
    """Return the files that are new or differ from the uploaded ones, and the deleted ones.

    Excludes files that exist locally and were not uploaded, such as ignored ones, and files in
    directories that git would recognize as a bare repository. Raises CommandFailed if git cannot list
    the files.
    """
    own = {name for name in found if name not in sent and _is_file(directory / name)}
    # Files created locally since the upload would be uploaded by now, so they are not excluded.
    own = own.difference(_list_files(directory) if own else ())
    differing = [name for name in own if _differs(directory / name, {_checksum(found[name][0])})]
    for name in sorted(differing):
        click.echo(f"not overwritten, since it was not uploaded: {clean(name)}", err=True)
    changed = {
        name: file
        for name, file in found.items()
        if _checksum(file[0]) != sent.get(name) and name not in own
    }
    deleted = [name for name in sent if name not in found and not _is_git(name)]
    files = {name.lower() for name in (*found, *sent)}
    paths = files | {path for name in files for path in _parents(name)}

    def is_repository(path: str) -> bool:
        head, *others = (f"{path}/{part}".removeprefix("./") for part in _BARE)
        is_head = head.lower() in files or os.path.lexists(directory / head)
        return is_head and all(
            part.lower() in paths or os.path.lexists(directory / part) for part in others
        )

    bare = {path for name in (*changed, *deleted) for path in _parents(name) if is_repository(path)}
    for path in sorted(bare):
        click.echo(f"not changed, since git would use it as a repository: {clean(path)}", err=True)
    return (
        {name: file for name, file in changed.items() if bare.isdisjoint(_parents(name))},
        [name for name in deleted if bare.isdisjoint(_parents(name))],
    )


def read_files(packed: bytes) -> Iterator[tuple[str, tuple[bytes, int]]]:
    """Yield the regular files of a sandbox's archive, without `.git`; raises CommandFailed."""
    total = 0
    try:
        archive = TarStream(Gunzip(io.BytesIO(packed)))
        for member in archive:
            name = str(PurePosixPath(member.name))
            if member.kind is not MemberKind.FILE or _is_git(name):
                continue
            total += member.size
            if total > MAX_BYTES or not is_inside(name):
                raise CommandFailed(f"the sandbox sent an invalid file: {clean(name)}")
            yield name, (b"".join(archive.parts(member)), member.mode & 0o777)
    except BadTar as exc:
        raise CommandFailed(f"the sandbox sent an invalid archive: {exc}") from exc


def is_inside(name: str) -> bool:
    """Return whether a path of an archive stays below its target directory."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name not in ("", ".")


def write_file(directory: Path, name: str, data: bytes, mode: int) -> None:
    """Write a file below a directory, never through a symlink; raises CommandFailed or OSError."""
    file = _path_below(directory, name)
    draft = file.with_name(f".agentsvc-{new_id()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.chmod((mode & 0o777) | 0o600)
        draft.replace(file)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def remove_file(directory: Path, name: str) -> None:
    """Delete a file below a directory, if it exists."""
    _path_below(directory, name).unlink(missing_ok=True)


def _path_below(directory: Path, name: str) -> Path:
    """Return the path of a file; raises CommandFailed if a symlink leads out of the directory."""
    root = directory.resolve()
    file = root / name
    if not file.parent.resolve().is_relative_to(root) or not is_inside(name):
        raise CommandFailed(f"the file would be outside of {directory}: {clean(name)}")
    return file


def _store(packed: bytes, directory: Path) -> str:
    place = directory.resolve()
    kept = place.with_name(f"{place.name}.{new_id()}.tar.gz")
    try:
        with os.fdopen(create_private(kept), "wb") as opened:
            opened.write(packed)
    except OSError as exc:
        return f"the sandbox's archive cannot be stored either: {exc.strerror}: {kept}"
    return f"the sandbox's archive is stored in {kept}"


def _parents(name: str) -> list[str]:
    return [str(path) for path in PurePosixPath(name).parents]


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_file(path: Path) -> bool:
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


def _differs(path: Path, checksums: set[str | None]) -> bool:
    """Return whether a file exists and has none of these checksums."""
    if not path.is_file():
        return _is_file(path)
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() not in checksums
    except OSError:
        return True


def _is_git(name: str) -> bool:
    return any(part.lower() == _GIT for part in PurePosixPath(name).parts)


def _list_files(directory: Path) -> Iterator[str]:
    place = directory.resolve()
    if not any(os.path.lexists(path / _GIT) for path in (place, *place.parents)):
        yield from _files_below(directory, directory)
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607  # the user's own git
        cwd=directory,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        # As in a repository of another user. Copying all files would include ignored secrets.
        said = os.fsdecode(listed.stderr).strip()
        raise CommandFailed(f"git cannot list the files of {directory}", said)
    yield from (os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    if (directory / _GIT).is_dir():
        yield from _files_below(directory / _GIT, directory)


def _files_below(start: Path, directory: Path) -> Iterator[str]:
    for path, _, files in start.walk():
        yield from (str((path / name).relative_to(directory)) for name in files)


def _pack(directory: Path, names: list[str]) -> tuple[bytes, Checksums]:
    packed, checksums, total = io.BytesIO(), {}, 0
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in names:
            file = directory / name
            if file.is_symlink() or not file.is_file():
                continue
            with file.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1 - total)
            total += len(data)
            if total > MAX_BYTES:
                raise CommandFailed(f"{directory} has more than {MAX_BYTES >> 20} MiB of files")
            head = tarfile.TarInfo(name)
            head.size, head.mode = len(data), file.stat().st_mode & 0o777
            archive.addfile(head, io.BytesIO(data))
            checksums[name] = _checksum(data)
    return packed.getvalue(), checksums


class _Workspace:
    """The working directory of a conversation in its sandbox."""

    def __init__(self, api: Api, conversation: Record) -> None:
        self._api = api
        sandbox_id = conversation["sandbox_id"]
        self._agent = f"/sandboxes/{sandbox_id}/agent/api"
        sandbox = api.call("GET", SANDBOXES, query={"id": sandbox_id})[0]
        workspace = api.call("GET", agent_path(conversation)).get("workspace") or {}
        self._directory = str(workspace.get("working_dir") or sandbox["working_dir"])
        self._name = f".agentsvc-{new_id()}.tar.gz"
        self._packed = f"{sandbox['working_dir']}/{self._name}"

    def upload(self, packed: bytes) -> None:
        """Upload an archive and unpack it there."""
        boundary = new_id()
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="files"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        body = head.encode() + packed + f"\r\n--{boundary}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        query = {"path": self._packed}
        path = f"{self._agent}/file/upload"
        with self._api.open("POST", path, query=query, body=body, headers=kind):
            pass
        where, what = shlex.quote(self._directory), shlex.quote(self._packed)
        self._run(
            f"mkdir -p {where} && cd {where} && tar -xzf {what} --no-same-owner; r=$?; rm -f {what}; exit $r"
        )

    def download(self) -> tuple[bytes, CommandFailed | None]:
        """Return an archive of the directory, and the error if it is incomplete."""
        failure = None
        where, what = shlex.quote(self._directory), shlex.quote(self._packed)
        # Create the archive first: tar fails if the directory changes while it is read.
        packing = f": >{what} && tar {SPARSE} -czf {what} --exclude=./.git --exclude={self._name} ."
        try:
            self._run(f"cd {where} && {packing}")
        except CommandFailed as exc:
            failure = exc
        packed = bytearray()
        try:
            for part in self._api.parts(f"{self._agent}/file/download", {"path": self._packed}):
                packed += part
                if len(packed) > MAX_BYTES:
                    break
        except CommandFailed as exc:
            raise failure or exc from None
        with contextlib.suppress(CommandFailed):
            self._run(f"rm -f {what}")
        if len(packed) > MAX_BYTES:
            failure = CommandFailed(f"the sandbox has more than {MAX_BYTES >> 20} MiB of files")
        return bytes(packed), failure

    def _run(self, text: str) -> None:
        body = {"command": text, "timeout": _COMMAND_SECONDS}
        done = self._api.call("POST", f"{self._agent}/bash/execute_bash_command", body=body)
        if done["exit_code"] != 0:
            raise CommandFailed(
                f"the files cannot be copied: {clean(done['stderr'] or done['stdout'] or 'no reason')}"
            )
