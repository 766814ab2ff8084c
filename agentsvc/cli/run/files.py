"""A directory of this machine in a sandbox: a copy there, and what was changed brought back."""

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
"""What git takes a directory for a repository by."""

type Checksums = dict[str, str]
"""The files of a directory by relative path, each with the sum of what is in it."""


def upload_directory(api: Api, conversation: Record, directory: Path) -> Checksums:
    """Put a copy of a directory into the sandbox's, and return what it holds.

    In a git repository only what git does not ignore is copied, and its history. Raises CommandFailed
    where git does not say what that is.
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
    """Write what the agent changed into the directory, after asking.

    A repository stays as it is here, also one within: git runs what its configuration names. So does
    what was not sent, or was changed here since. Raises CommandFailed where something cannot be
    written; all that the sandbox sent is kept then.
    """
    packed, failure = _Workspace(api, conversation).download()
    if failure is not None:
        # What is missing in it is not to be taken for deleted.
        raise CommandFailed(failure.message, _keep(packed, directory)) if packed else failure
    try:
        changed, deleted = find_changes(directory, dict(read_files(packed)), sent)
    except CommandFailed as exc:
        raise CommandFailed(exc.message, _keep(packed, directory)) from exc
    if not changed and not deleted:
        click.echo("no file was changed", err=True)
        return
    for name in sorted(changed):
        click.echo(f"{'changed' if name in sent else 'new'}: {clean(name)}", err=True)
    for name in deleted:
        click.echo(f"deleted: {clean(name)}", err=True)
    question = f"Write this to {directory}?"
    if not agrees and not sys.stdin.isatty():
        # The agent's work is done and paid for.
        hint = f"agree with --yes; {_keep(packed, directory)}"
        raise CommandFailed(f"{question.rstrip('?')}: nobody is there to ask", hint)
    confirm(question, is_agreed=agrees)
    wanted = {name: _checksum(data) for name, (data, _) in changed.items()}
    others = {
        name
        for name in (*changed, *deleted)
        if _is_other(directory / name, {sent.get(name), wanted.get(name)})
    }
    for name in sorted(others):
        click.echo(f"left as it is, since it was changed here meanwhile: {clean(name)}", err=True)
    failures = [f"of its files, {len(others)} were changed here meanwhile"] if others else []
    failures += apply_changes(
        directory,
        {name: file for name, file in changed.items() if name not in others},
        [name for name in deleted if name not in others],
    )
    if failures:
        reason = f"not everything was written to {directory}: {'; '.join(failures[:_SHOWN])}"
        raise CommandFailed(reason, _keep(packed, directory))
    click.echo(f"written to {directory}", err=True)


def apply_changes(
    directory: Path, changed: Mapping[str, tuple[bytes, int]], deleted: Iterable[str]
) -> list[str]:
    """Delete files below a directory, then write others; return what went wrong with some of them."""
    failures: list[str] = []
    gone = list(deleted)
    for name in gone:
        with _noting(failures, name):
            remove_file(directory, name)
    for name in gone:
        if not changed.keys().isdisjoint(_parents(name)):
            _remove_empty(directory, name)
    for name, (data, mode) in changed.items():
        with _noting(failures, name):
            write_file(directory, name, data, mode)
    # Only now: one that gets another file keeps its rights.
    for name in gone:
        _remove_empty(directory, name)
    return failures


def _remove_empty(directory: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        for path in _parents(name)[:-1]:
            (directory / path).rmdir()


@contextlib.contextmanager
def _noting(failures: list[str], name: str) -> Iterator[None]:
    try:
        yield
    except CommandFailed as exc:
        failures.append(exc.message)
    except (OSError, ValueError, RuntimeError) as exc:
        # A name that no file can have, or a link to itself.
        failures.append(f"{clean(name)}: {getattr(exc, 'strerror', None) or exc}")


def find_changes(
    directory: Path, found: Mapping[str, tuple[bytes, int]], sent: Checksums
) -> tuple[dict[str, tuple[bytes, int]], list[str]]:
    """Return which files are new or other than they were sent, and which are deleted.

    Those are left out that are here and are not sent, such as what git ignores, and those that lie
    where git would take a directory for a bare repository, as in `.git`. Raises CommandFailed where
    git does not say what it ignores.
    """
    own = {name for name in found if name not in sent and _is_file(directory / name)}
    # What was made here meanwhile would be sent by now.
    own = own.difference(_list_files(directory) if own else ())
    differing = [name for name in own if _is_other(directory / name, {_checksum(found[name][0])})]
    for name in sorted(differing):
        click.echo(f"left as it is, since it was not copied: {clean(name)}", err=True)
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
        click.echo(f"left as it is, since git takes it for a repository: {clean(path)}", err=True)
    return (
        {name: file for name, file in changed.items() if bare.isdisjoint(_parents(name))},
        [name for name in deleted if bare.isdisjoint(_parents(name))],
    )


def read_files(packed: bytes) -> Iterator[tuple[str, tuple[bytes, int]]]:
    """Yield the plain files of an archive that came from a sandbox; raises CommandFailed."""
    total = 0
    try:
        archive = TarStream(Gunzip(io.BytesIO(packed)))
        for member in archive:
            name = str(PurePosixPath(member.name))
            if member.kind is not MemberKind.FILE or _is_git(name):
                continue
            total += member.size
            if total > MAX_BYTES or not is_inside(name):
                raise CommandFailed(f"the sandbox sent an unwanted file: {clean(name)}")
            yield name, (b"".join(archive.parts(member)), member.mode & 0o777)
    except BadTar as exc:
        raise CommandFailed(f"the sandbox did not send its files: {exc}") from exc


def is_inside(name: str) -> bool:
    """Tell whether a path of an archive stays below the directory it is for."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name not in ("", ".")


def write_file(directory: Path, name: str, data: bytes, mode: int) -> None:
    """Write one file below a directory, and never through a link; raises CommandFailed or OSError."""
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
    """Delete one file below a directory."""
    _path_below(directory, name).unlink(missing_ok=True)


def _path_below(directory: Path, name: str) -> Path:
    """Return the place of a file; raises CommandFailed where a link leads elsewhere."""
    root = directory.resolve()
    file = root / name
    if not file.parent.resolve().is_relative_to(root) or not is_inside(name):
        raise CommandFailed(f"the file would be outside of {directory}: {clean(name)}")
    return file


def _keep(packed: bytes, directory: Path) -> str:
    place = directory.resolve()
    kept = place.with_name(f"{place.name}.{new_id()}.tar.gz")
    try:
        with os.fdopen(create_private(kept), "wb") as opened:
            opened.write(packed)
    except OSError as exc:
        return f"what the sandbox sent cannot be kept either: {exc.strerror}: {kept}"
    return f"what the sandbox sent is in {kept}"


def _parents(name: str) -> list[str]:
    return [str(path) for path in PurePosixPath(name).parents]


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_file(path: Path) -> bool:
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


def _is_other(path: Path, checksums: set[str | None]) -> bool:
    """Tell whether there is a file, and it has another sum than these."""
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
        # Such as in one of another user: what it ignores, secrets among it, would be copied, too.
        said = os.fsdecode(listed.stderr).strip()
        raise CommandFailed(f"git does not say what to copy of {directory}", said)
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
        """Unpack an archive into it."""
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
        """Return an archive of it, and why not all of it is in there."""
        failure = None
        where, what = shlex.quote(self._directory), shlex.quote(self._packed)
        # Made beforehand, lest tar see the directory change by its own archive, which it refuses.
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
