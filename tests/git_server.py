"""A small git server over HTTP that asks for a token: real repositories behind a real protocol."""

import asyncio
import base64
import binascii
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from agentsvc.base import Secret
from agentsvc.testing.listening import Listening

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_IDENTITY: Final = ("-c", "user.name=Test", "-c", "user.email=test@example.com")


class GitServer(Listening):
    """Serves the repositories below a directory; use it as an async context manager.

    Any user name is taken, the password must be the token. `users` has the user name of each
    request that was let in, `refused` counts the others.
    """

    def __init__(self, root: Path, token: Secret | None = None) -> None:
        self.root = root
        self.token = token or Secret("git-server-token")
        self.users: list[str] = []
        self.refused = 0

    @property
    def host(self) -> str:
        """Return host and port, as a provider's `host` names them."""
        return f"127.0.0.1:{self._port}"

    def url(self, name: str) -> str:
        """Return the URL of a repository, without any token."""
        return f"http://{self.host}/{name}.git"

    async def start(self) -> None:
        """Begin to listen on a free port of loopback."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._serve)
        await self._listen(app)

    async def add_repository(
        self,
        name: str,
        files: Mapping[str, str],
        *,
        branches: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Make a repository `owner/name` whose branch `main` has these files in one commit.

        Each further branch starts from there and adds its own files.
        """
        bare = self.root / f"{name}.git"
        work = self.root / f"{name}.work"
        # Another try of a test has made it, too.
        for path in (bare, work):
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        await run_git("init", "--quiet", "--bare", "--initial-branch=main", str(bare))
        await run_git("init", "--quiet", "--initial-branch=main", str(work))
        await self._commit(work, files)
        for branch, more in (branches or {}).items():
            await run_git("checkout", "--quiet", "-b", branch, "main", cwd=work)
            await self._commit(work, more)
        await run_git("push", "--quiet", "--all", str(bare), cwd=work)

    async def _commit(self, work: Path, files: Mapping[str, str]) -> None:
        await asyncio.to_thread(_write_files, work, files)
        await run_git("add", "--all", cwd=work)
        await run_git(*_IDENTITY, "commit", "--quiet", "--allow-empty", "-m", "Add files", cwd=work)

    async def _serve(self, request: web.Request) -> web.Response:
        user, password = _read_credentials(request.headers.get("Authorization", ""))
        if Secret(password) != self.token:
            self.refused += 1
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        self.users.append(user)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REMOTE_USER": user,
        }
        output = await _run(["git", "http-backend"], await request.read(), environment=environment)
        return _to_response(output)


async def run_git(*arguments: str, cwd: Path | None = None) -> str:
    """Run git without any configuration of this machine; return what it prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
    }
    output = await _run(["git", *arguments], b"", environment=environment, cwd=cwd)
    return output.decode()


async def _run(
    command: Sequence[str], data: bytes, *, environment: Mapping[str, str], cwd: Path | None = None
) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=cwd,
    )
    output, errors = await process.communicate(data)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {errors.decode(errors='replace')}")
    return output


def _write_files(work: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _read_credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        user, _, password = base64.b64decode(encoded).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def _to_response(output: bytes) -> web.Response:
    """Return the answer that a CGI program printed."""
    head, _, body = output.partition(b"\r\n\r\n")
    status = 200
    headers: dict[str, str] = {}
    for line in head.decode().split("\r\n"):
        name, _, value = line.partition(": ")
        if name.lower() == "status":
            status = int(value.split()[0])
        elif name:
            headers[name] = value
    return web.Response(status=status, headers=headers, body=body)
