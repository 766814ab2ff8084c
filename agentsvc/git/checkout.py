"""Repositories that the server itself fetches from a host and pushes to, without a work tree.

What comes from a sandbox or a host is hostile: git runs without any configuration of this machine, without
hooks, over HTTP only, and follows no redirect. The token is in git's environment, never in a URL or a
command. A checkout is bare, holds one commit without its history, and lasts for a moment.
"""

import asyncio
import base64
import contextlib
import os
import re
import shutil
import signal
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import AgentsvcError, BadRequest, InvalidRequest, NotFound, Secret, new_id
from agentsvc.domain import Provider, check_branch, credentials
from agentsvc.git.client import refused, unavailable
from agentsvc.settings import ProviderToken

MAX_MIB: Final = 2048
"""The largest pack that is fetched."""
MAX_COMMITS: Final = 200

_COMPARED_DEPTH: Final = 200
_PART_BYTES: Final = 1024 * 1024
_MAX_OUTPUT: Final = 32 * 1024 * 1024
_MAX_ERRORS: Final = 64 * 1024
_SHOWN: Final = 300
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HEAD: Final = "refs/agentsvc/head"
_SUBMODULE: Final = "160000"
_ODD_NAME = re.compile(r"[\0-\x1f\x7f\\]|(?:^|/)(?:\.{1,2}|\.git)(?:/|$)", re.IGNORECASE)
_WORKFLOWS = re.compile(
    r"^(?:\.(?:github|gitlab|forgejo|gitea)/|\.gitlab-ci|bitbucket-pipelines\.|\.woodpecker"
    r"|\.circleci/|\.travis\.|\.drone\.|\.azure|azure-pipelines|jenkinsfile|\.buildkite/)",
    re.IGNORECASE,
)
"""What hosts and their services run on their own machines, with secrets of the repository."""

_SETTINGS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "credential.helper": "",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
    "push.recurseSubmodules": "no",
    "transfer.bundleURI": "false",
}
# What git says, in lower case, where something is refused.
_TOKEN_REFUSED: Final = (
    *("could not read username", "authentication failed", "error: 401", "error: 403"),
    "access denied",
)
_NO_REPOSITORY: Final = (
    *("not found", "does not exist", "unable to update url base from redirection"),
    *("error: 301", "error: 302", "error: 307", "error: 308"),
)
_NO_COMMIT: Final = ("not our ref", "unadvertised object", "did not send all necessary objects")
_NOT_TAKEN: Final = ("[rejected]", "non-fast-forward", "fetch first", "[remote rejected]")


class GitRemote(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at a host, and how it is reached with the token of a user."""

    provider: Provider
    url: str
    token: ProviderToken | None = None
    addresses: tuple[str, ...] = ()
    """`host:port:address` of what was checked, so that no other one is called."""


class DefaultBranch(msgspec.Struct, frozen=True, kw_only=True):
    """Where the default branch of a repository is."""

    branch: str
    commit: str


class Checkout:
    """A bare repository that lasts as long as its context."""

    def __init__(self, directory: Path, remote: GitRemote, *, time_limit: float) -> None:
        self.remote = remote
        self._path = directory / new_id()
        self._time_limit = time_limit

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._path.mkdir, parents=True, mode=0o700)
        try:
            await self._git("init", "--quiet", "--bare", str(self._path))
        except BaseException:
            await self._remove()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._remove()

    async def branch(self, name: str) -> DefaultBranch:
        """Return where a branch is; raises NotFound, and InvalidRequest for what git takes as no name."""
        check_branch(name)
        ref = f"refs/heads/{name}"
        lines = await self._git("ls-remote", self.remote.url, ref, is_remote=True)
        found = re.search(rf"^([0-9a-f]{{40,64}})\t{re.escape(ref)}$", lines, re.MULTILINE)
        if found is None:
            raise NotFound(f"The repository has no branch `{name}`")
        return DefaultBranch(branch=name, commit=found[1])

    async def head(self) -> DefaultBranch:
        """Return where the default branch is; raises NotFound without one whose name can be taken."""
        lines = await self._git("ls-remote", "--symref", self.remote.url, "HEAD", is_remote=True)
        found = re.match(r"ref: refs/heads/(\S+)\tHEAD\n([0-9a-f]{40,64})\tHEAD", lines)
        if found is None:
            raise NotFound("The repository is empty, or says nothing of its default branch")
        try:
            check_branch(found[1])
        except (InvalidRequest, UnicodeEncodeError) as exc:
            shown = ascii(found[1][:_SHOWN])
            raise NotFound(f"The name of the default branch is not taken: {shown}") from exc
        return DefaultBranch(branch=found[1], commit=found[2])

    async def fetch(self, commit: str, compared_to: str | None = None) -> None:
        """Fetch a commit without its history; raises NotFound for one that is not there.

        With another commit it is fetched with that, and both with enough history to find where they part.
        """
        commits = [commit, *([compared_to] if compared_to else [])]
        for one in commits:
            _check_commit(one)
        depth = f"--depth={_COMPARED_DEPTH if compared_to else 1}"
        told = ("fetch", "--quiet", "--no-tags", depth, self.remote.url, *commits)
        await self._git(*told, is_remote=True)

    async def read(self, commit: str, path: str, max_bytes: int) -> bytes | None:
        """Return a file of a commit that was fetched, or None; raises BadRequest for a larger one."""
        _check_commit(commit)
        told = await self._git("ls-tree", "-l", "-z", "--full-tree", commit, "--", path)
        found = re.fullmatch(r"\d+ blob ([0-9a-f]+) +(\d+)\t.*\0", told, re.DOTALL)
        if found is None:
            return None
        if int(found[2]) > max_bytes:
            raise BadRequest(f"`{path}` is larger than {max_bytes // 1024} KiB")
        text = await self._git("cat-file", "blob", found[1])
        return text.encode(errors="surrogateescape")

    async def archive(self, commit: str, directory: str | None, max_bytes: int) -> Path:
        """Return a tar archive of a directory of a commit, or an empty one; it lasts as the checkout.

        Raises BadRequest for a larger one, and for a directory that is not there.
        """
        _check_commit(commit)
        file = self._path / "directory.tar"
        if directory is None:
            await asyncio.to_thread(lambda: tarfile.open(file, "w").close())
            return file
        tree = f"{commit}:{'' if directory == '.' else directory}"
        try:
            await self._git("archive", "--format=tar", f"--output={file}", tree)
        except AgentsvcError as exc:
            raise BadRequest(f"There is no directory `{directory}`", detail=exc.detail) from exc
        if (await asyncio.to_thread(file.stat)).st_size > max_bytes:
            raise BadRequest(f"`{directory}` is larger than {max_bytes // 1024**2} MiB")
        return file

    async def pack(self) -> AsyncIterator[bytes]:
        """Return an archive of what was fetched, to be unpacked in an empty repository."""
        file = self._path / "pack.tar"
        await asyncio.to_thread(_pack, self._path, file)
        return _parts(file)

    async def take(self, bundle: bytes, base: str, *, workflows: bool = False) -> str:
        """Take the commits in of a bundle that follow a commit, and return the last one.

        Raises BadRequest for what is not to be pushed: what does not build on that commit, is too
        much, has submodules, or changes workflows where that is not allowed.
        """
        _check_commit(base)
        file = self._path / "taken.bundle"
        await asyncio.to_thread(file.write_bytes, bundle)
        try:
            await self._git(
                *("-c", "protocol.file.allow=always", "-c", "fetch.fsckObjects=true"),
                *("fetch", "--quiet", "--no-tags", str(file), f"+HEAD:{_HEAD}"),
            )
            head = (await self._git("rev-parse", "--verify", f"{_HEAD}^{{commit}}")).strip()
            await self._git("merge-base", "--is-ancestor", base, head)
            commits = f"{base}..{head}"
            count = int(await self._git("rev-list", "--count", commits))
            told = await self._git(
                *("log", "--format=", "--raw", "-z", "-m", "--no-renames", "--abbrev=4", commits)
            )
        except BadRequest:
            raise
        except (AgentsvcError, ValueError) as exc:
            text = "What the agent has made does not build on the commit it was given"
            raise BadRequest(text, detail=str(getattr(exc, "detail", exc))) from exc
        if count > MAX_COMMITS:
            raise BadRequest(f"The agent has made {count} commits, and {MAX_COMMITS} are allowed")
        await asyncio.to_thread(check_changes, told, workflows=workflows)
        return head

    async def push(self, commit: str, branch: str) -> None:
        """Push a commit as a branch; raises BadRequest where that has others by now."""
        _check_commit(commit)
        spec = f"{commit}:refs/heads/{branch}"
        await self._git("push", "--quiet", "--no-verify", self.remote.url, spec, is_remote=True)

    async def _git(self, *arguments: str, is_remote: bool = False) -> str:
        environment = _environment(self.remote if is_remote else None)
        # The shell keeps what git writes from filling the disk.
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", f'ulimit -f {MAX_MIB * 2048} && exec git "$@"', "git", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._path,
            env=environment,
            start_new_session=True,
        )

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        try:
            async with asyncio.timeout(self._time_limit):
                output, errors = await asyncio.gather(
                    _end_of(process.stdout, _MAX_OUTPUT, kill),
                    _end_of(process.stderr, _MAX_ERRORS, lambda: None),
                )
                await process.wait()
        except TimeoutError as exc:
            raise unavailable(self.remote.provider, "git took too long") from exc
        finally:
            kill()
            await process.wait()
        if len(output) > _MAX_OUTPUT:
            most = _MAX_OUTPUT // 1024**2
            raise BadRequest(f"Git's output is larger than {most} MiB and is not read")
        if process.returncode:
            raise self._failure(errors.decode(errors="replace"))
        return output.decode(errors="surrogateescape")

    def _failure(self, said: str) -> AgentsvcError:
        provider, detail = self.remote.provider, said.strip()[-_SHOWN:]

        def is_said(signs: tuple[str, ...]) -> bool:
            return any(sign in said.lower() for sign in signs)

        if is_said(_TOKEN_REFUSED):
            return refused(provider)
        if is_said(_NO_REPOSITORY):
            text = f"There is no such repository at `{provider.value}`: renamed, deleted, or hidden"
            return NotFound(text)
        if is_said(_NO_COMMIT):
            return NotFound("The commit is not in the repository any more")
        if is_said(_NOT_TAKEN):
            text = "The branch has got other commits, or the host protects it"
            return BadRequest(text, detail=detail)
        return unavailable(provider, detail)

    async def _remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._path, ignore_errors=True)


def check_changes(told: str, *, workflows: bool) -> None:
    """Raise BadRequest unless what `git log --raw -z` tells of may be pushed."""
    fields = told.split("\0")
    for head, name in zip(fields[::2], fields[1::2], strict=False):
        modes = head.lstrip("\n:").split(" ")[:2]
        shown = ascii(name[:_SHOWN])
        if _SUBMODULE in modes or name.lower() == ".gitmodules":
            raise BadRequest(f"The agent has changed a submodule, which is not pushed: {shown}")
        if _ODD_NAME.search(name):
            raise BadRequest(f"The agent has made a file whose name is not pushed: {shown}")
        if not workflows and _WORKFLOWS.match(name):
            raise BadRequest(
                f"The agent has changed what the host runs, which its automation does not allow: {shown}"
            )


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of an http(s) URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


async def _end_of(
    stream: asyncio.StreamReader | None, most: int, on_more: Callable[[], None]
) -> bytearray:
    """Read to the end, and return no more of it than one byte beyond what is allowed."""
    kept = bytearray()
    while stream and (part := await stream.read(_PART_BYTES)):
        kept += part
        if len(kept) > most:
            on_more()
            del kept[: -most - 1]
    return kept


def _check_commit(text: str) -> None:
    if not _COMMIT.fullmatch(text):
        raise BadRequest("This is not the name of a commit")


def _environment(remote: GitRemote | None) -> dict[str, str]:
    settings: list[tuple[str, str]] = list(_SETTINGS.items())
    if remote is not None and remote.token is not None:
        settings.append(("http.extraHeader", f"Authorization: {_basic(remote)}"))
    if remote is not None:
        settings += [("http.curloptResolve", one) for one in remote.addresses]
    configured = {
        f"GIT_CONFIG_{kind}_{number}": text
        for number, setting in enumerate(settings)
        for kind, text in zip(("KEY", "VALUE"), setting, strict=True)
    }
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "LC_ALL": "C",
        "GIT_ASKPASS": "/bin/true",
        "GIT_CONFIG_COUNT": str(len(settings)),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        **configured,
    }


def _basic(remote: GitRemote) -> str:
    token = remote.token.token if remote.token else Secret("")
    user, password = credentials(remote.provider, token)
    return f"Basic {base64.b64encode(f'{user}:{password.reveal()}'.encode()).decode()}"


def _pack(directory: Path, file: Path) -> None:
    with tarfile.open(file, "w") as archive:
        archive.add(directory / "objects", "objects")
        if (directory / "shallow").exists():
            archive.add(directory / "shallow", "shallow")


async def _parts(file: Path) -> AsyncIterator[bytes]:
    opened = await asyncio.to_thread(file.open, "rb")
    try:
        while part := await asyncio.to_thread(opened.read, _PART_BYTES):
            yield part
    finally:
        opened.close()
