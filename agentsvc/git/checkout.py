"""Repositories that the server itself fetches from a host and pushes to, without a work tree.

Input from sandboxes and hosts is untrusted: git runs without any configuration of this machine, without
hooks, over HTTP only, and follows no redirect. The token is in git's environment, never in a URL or a
command. A checkout is bare, contains one commit without its history, and is short-lived.
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
"""Maximum size of a fetched pack."""
MAX_COMMITS: Final = 200

_COMPARED_DEPTH: Final = 200
_PART_BYTES: Final = 1024 * 1024
_MAX_OUTPUT: Final = 32 * 1024 * 1024
_MAX_ERRORS: Final = 64 * 1024
_MAX_SHOWN: Final = 300
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HEAD: Final = "refs/agentsvc/head"
_SUBMODULE: Final = "160000"
_UNSAFE_NAME = re.compile(r"[\0-\x1f\x7f\\]|(?:^|/)(?:\.{1,2}|\.git)(?:/|$)", re.IGNORECASE)
_WORKFLOWS = re.compile(
    r"^(?:\.(?:github|gitlab|forgejo|gitea)/|\.gitlab-ci|bitbucket-pipelines\.|\.woodpecker"
    r"|\.circleci/|\.travis\.|\.drone\.|\.azure|azure-pipelines|jenkinsfile|\.buildkite/)",
    re.IGNORECASE,
)
"""Files that make hosts and CI services run commands with access to secrets of the repository."""

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
# Parts of git's error messages, in lower case.
_TOKEN_REFUSED: Final = (
    *("could not read username", "authentication failed", "error: 401", "error: 403"),
    "access denied",
)
_NO_REPOSITORY: Final = (
    *("not found", "does not exist", "unable to update url base from redirection"),
    *("error: 301", "error: 302", "error: 307", "error: 308"),
)
_NO_COMMIT: Final = ("not our ref", "unadvertised object", "did not send all necessary objects")
_PUSH_REJECTED: Final = ("[rejected]", "non-fast-forward", "fetch first", "[remote rejected]")


class GitRemote(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at a host, with its URL and the token to access it."""

    provider: Provider
    url: str
    token: ProviderToken | None = None
    addresses: tuple[str, ...] = ()
    """`host:port:address` of the checked addresses, so that git connects to no other."""


class DefaultBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a repository, usually the default one, and its commit."""

    branch: str
    commit: str


class Checkout:
    """A bare repository that exists as long as its context."""

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
        """Return a branch with its commit; raises NotFound, or InvalidRequest for the name."""
        check_branch(name)
        ref = f"refs/heads/{name}"
        lines = await self._git("ls-remote", self.remote.url, ref, is_remote=True)
        found = re.search(rf"^([0-9a-f]{{40,64}})\t{re.escape(ref)}$", lines, re.MULTILINE)
        if found is None:
            raise NotFound(f"The repository has no branch `{name}`")
        return DefaultBranch(branch=name, commit=found[1])

    async def head(self) -> DefaultBranch:
        """Return the default branch with its commit; raises NotFound if it has no valid name."""
        lines = await self._git("ls-remote", "--symref", self.remote.url, "HEAD", is_remote=True)
        found = re.match(r"ref: refs/heads/(\S+)\tHEAD\n([0-9a-f]{40,64})\tHEAD", lines)
        if found is None:
            raise NotFound("The repository is empty, or does not name its default branch")
        try:
            check_branch(found[1])
        except (InvalidRequest, UnicodeEncodeError) as exc:
            shown = ascii(found[1][:_MAX_SHOWN])
            raise NotFound(f"The name of the default branch is not allowed: {shown}") from exc
        return DefaultBranch(branch=found[1], commit=found[2])

    async def fetch(self, commit: str, compared_to: str | None = None) -> None:
        """Fetch a commit without its history; raises NotFound if it does not exist.

        With `compared_to`, fetch both commits with enough history to find their merge base.
        """
        commits = [commit, *([compared_to] if compared_to else [])]
        for one in commits:
            _check_commit(one)
        depth = f"--depth={_COMPARED_DEPTH if compared_to else 1}"
        arguments = ("fetch", "--quiet", "--no-tags", depth, self.remote.url, *commits)
        await self._git(*arguments, is_remote=True)

    async def read(self, commit: str, path: str, max_bytes: int) -> bytes | None:
        """Return a file of a fetched commit, or None; raises BadRequest if it is too large."""
        _check_commit(commit)
        output = await self._git("ls-tree", "-l", "-z", "--full-tree", commit, "--", path)
        found = re.fullmatch(r"\d+ blob ([0-9a-f]+) +(\d+)\t.*\0", output, re.DOTALL)
        if found is None:
            return None
        if int(found[2]) > max_bytes:
            raise BadRequest(f"`{path}` is larger than {max_bytes // 1024} KiB")
        text = await self._git("cat-file", "blob", found[1])
        return text.encode(errors="surrogateescape")

    async def archive(self, commit: str, directory: str | None, max_bytes: int) -> Path:
        """Return a tar archive of a directory, or an empty one; it is deleted with the checkout.

        Raises BadRequest if it is larger than allowed, and for a directory that does not exist.
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
        """Return a tar archive of the fetched objects, to be unpacked in an empty repository."""
        file = self._path / "pack.tar"
        await asyncio.to_thread(_pack, self._path, file)
        return _parts(file)

    async def take(self, bundle: bytes, base: str, *, workflows: bool = False) -> str:
        """Import the commits of a bundle that follow a commit, and return the last one.

        Raises BadRequest for commits that must not be pushed: those not based on that commit, too many,
        with submodules or unsafe file names, or with changes to workflows unless these are allowed.
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
            output = await self._git(
                *("log", "--format=", "--raw", "-z", "-m", "--no-renames", "--abbrev=4", commits)
            )
        except BadRequest:
            raise
        except (AgentsvcError, ValueError) as exc:
            text = "The agent's commits are not based on the commit that it was given"
            raise BadRequest(text, detail=str(getattr(exc, "detail", exc))) from exc
        if count > MAX_COMMITS:
            raise BadRequest(f"The agent has made {count} commits, more than {MAX_COMMITS}")
        await asyncio.to_thread(check_changes, output, workflows=workflows)
        return head

    async def push(self, commit: str, branch: str) -> None:
        """Push a commit as a branch; raises BadRequest if the branch has other commits by now."""
        _check_commit(commit)
        spec = f"{commit}:refs/heads/{branch}"
        await self._git("push", "--quiet", "--no-verify", self.remote.url, spec, is_remote=True)

    async def _git(self, *arguments: str, is_remote: bool = False) -> str:
        environment = _environment(self.remote if is_remote else None)
        # The limit of the shell keeps git from filling the disk.
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
                    _read_tail(process.stdout, _MAX_OUTPUT, kill),
                    _read_tail(process.stderr, _MAX_ERRORS, lambda: None),
                )
                await process.wait()
        except TimeoutError as exc:
            raise unavailable(self.remote.provider, "git took too long") from exc
        finally:
            kill()
            await process.wait()
        if len(output) > _MAX_OUTPUT:
            limit = _MAX_OUTPUT // 1024**2
            raise BadRequest(f"The output of git is larger than {limit} MiB")
        if process.returncode:
            raise self._failure(errors.decode(errors="replace"))
        return output.decode(errors="surrogateescape")

    def _failure(self, message: str) -> AgentsvcError:
        provider, detail = self.remote.provider, message.strip()[-_MAX_SHOWN:]

        def matches(patterns: tuple[str, ...]) -> bool:
            return any(pattern in message.lower() for pattern in patterns)

        if matches(_TOKEN_REFUSED):
            return refused(provider)
        if matches(_NO_REPOSITORY):
            text = f"There is no such repository at `{provider.value}`: renamed, deleted, or hidden"
            return NotFound(text)
        if matches(_NO_COMMIT):
            return NotFound("The commit is no longer in the repository")
        if matches(_PUSH_REJECTED):
            text = "The branch has other commits by now, or the host protects it"
            return BadRequest(text, detail=detail)
        return unavailable(provider, detail)

    async def _remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._path, ignore_errors=True)


def check_changes(output: str, *, workflows: bool) -> None:
    """Raise BadRequest unless the changes in the output of `git log --raw -z` may be pushed."""
    fields = output.split("\0")
    for head, name in zip(fields[::2], fields[1::2], strict=False):
        modes = head.lstrip("\n:").split(" ")[:2]
        shown = ascii(name[:_MAX_SHOWN])
        if _SUBMODULE in modes or name.lower() == ".gitmodules":
            raise BadRequest(f"The agent has changed a submodule, which is not allowed: {shown}")
        if _UNSAFE_NAME.search(name):
            raise BadRequest(f"The agent has made a file whose name is not allowed: {shown}")
        if not workflows and _WORKFLOWS.match(name):
            raise BadRequest(
                f"The agent has changed a workflow of the host, which its automation does not allow: {shown}"
            )


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of an http(s) URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


async def _read_tail(
    stream: asyncio.StreamReader | None, limit: int, on_excess: Callable[[], None]
) -> bytearray:
    """Read a stream to its end and return its last bytes, at most one more than the limit."""
    kept = bytearray()
    while stream and (part := await stream.read(_PART_BYTES)):
        kept += part
        if len(kept) > limit:
            on_excess()
            del kept[: -limit - 1]
    return kept


def _check_commit(text: str) -> None:
    if not _COMMIT.fullmatch(text):
        raise BadRequest("This is not a commit hash")


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
