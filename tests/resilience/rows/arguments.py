"""No argument injection: hostile names of branches, repositories, people and files.

What the server would have a sandbox run is really run, by a shell in a place of its own: bubblewrap
with nothing in it but the system's programs. Whatever a name has executed leaves a file there.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Client

CASES: Final = 1000
_EACH: Final = 8
_MARK: Final = "/scratch/executed"
_DO: Final = f"touch {_MARK}"
_SHAPES: Final = (
    "$({do})",
    "`{do}`",
    ";{do};",
    "a;{do}",
    "a|{do}",
    "a||{do}",
    "a&&{do}",
    "a&{do}&",
    "\n{do}\n",
    "a\n{do}\n",
    "';{do};'",
    '";{do};"',
    "'$({do})'",
    '"$({do})"',
    "\\';{do};#",
    "${{IFS}}$({do})",
    "a'\"`$({do})`\"'",
    "--upload-pack={do};",
    "--upload-pack=$({do})",
    "-u{do};",
    "-c core.sshCommand={do}",
    "--config=core.fsmonitor={do}",
    "--template=/scratch",
    "--exec={do}",
    "-oProxyCommand={do}",
    "ssh://-oProxyCommand={do}/a/b",
    "ext::sh -c {do}",
    "ext::{do}",
    "file:///etc",
    "https://example.org/a/b;{do}",
    "https://example.org/$({do})/b",
    "https://$({do})@example.org/a/b",
    "git@example.org:$({do})/b",
    "a/$({do})",
    "a/b`{do}`",
    "../$({do})",
    "a/--upload-pack={do}",
    "-/{do}",
    "refs/heads/$({do})",
    "@{{-1}};{do}",
    "HEAD:;{do}",
    "main --upload-pack={do}",
    "!{do}",
    "~/$({do})",
    "<({do})",
    ">(({do}))",
    "a\r{do}\r",
    "a\x00;{do}",
    "%0a{do}%0a",
    "a\u2028{do}",
    "\t{do}\t",
    "$'\\n{do}\\n'",
    "END\n{do}\n",
    "'\n{do}\n'",
    "*;{do}",
    "[$({do})]",
    "{{a,$({do})}}",
    "$[$({do})]",
)
_BETWEEN: Final = (
    "touch /scratch/executed",
    "touch${IFS}/scratch/executed",
    "touch\t/scratch/executed",
)


def names() -> Iterator[str]:
    """Yield names that execute something if a shell, or git, takes them for more than names."""
    for shape in _SHAPES:
        for do in _BETWEEN:
            yield shape.format(do=do)


class Shell:
    """Runs what a sandbox would run, and tells what that has executed beside it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._known: set[str] = set()
        self.ran = 0

    def run(self, command: str) -> bool:
        """Run a command, unless it was run before; return whether a mark was left. Blocks."""
        if command in self._known or "\0" in command:
            return False
        self._known.add(command)
        self.ran += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*self._held(), "bash", "-c", command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
                check=False,
            )
        mark = self._scratch / "executed"
        was_left = mark.exists()
        mark.unlink(missing_ok=True)
        return was_left

    def _held(self) -> list[str]:
        system = ["--tmpfs", "/", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
        links = [("usr/bin", "/bin"), ("usr/lib", "/lib"), ("usr/lib64", "/lib64")]
        made = [word for link in links for word in ("--symlink", *link)]
        own = ["--dir", "/home/agent", "--dir", "/workspace", "--dir", "/tmp"]  # noqa: S108
        rest = ["--proc", "/proc", "--dev", "/dev", "--bind", str(self._scratch), "/scratch"]
        home = ["--setenv", "HOME", "/home/agent", "--unshare-all", "--die-with-parent"]
        return ["bwrap", *system, *made, *own, *rest, *home]


class Namer:
    """A user with hostile names for everything."""

    def __init__(self, server: Server, client: Client) -> None:
        self._server = server
        self._client = client
        self.tried = 0
        self.refused = 0
        self.wrong: list[str] = []

    async def try_all(self, name: str, conversation_id: str) -> None:
        await self._start({"selected_repository": name})
        people = {"git_user_name": name, "git_user_email": name}
        saved = await self._client.post("/api/settings", json=people)
        self._note("a person", name, saved.status, count=2)
        await self._start({"selected_repository": "owner/name", "selected_branch": name})
        await self._client.post("/api/settings", json={"git_user_name": "a", "git_user_email": "b"})
        for path, member in (
            (f"/api/conversations/{conversation_id}/list-files", {"path": name}),
            (f"/api/v1/app-conversations/{conversation_id}/files", {"path": name}),
            (f"/api/v1/app-conversations/{conversation_id}/git/diff", {"path": "a", "ref": name}),
            (
                f"/api/v1/app-conversations/{conversation_id}/git/changes",
                {"path": ".", "ref": name},
            ),
        ):
            answer = await self._client.get(path, params=member)
            self._note(path, name, answer.status)

    async def _start(self, order: dict[str, Any]) -> None:
        answer = await self._client.post("/api/v1/app-conversations", json=order)
        self._note("a start", str(order), answer.status)
        if answer.status != 200:
            return
        task = await self._client.end_of_start(answer.json()["id"])
        made = task.get("app_conversation_id")
        if made:
            await self._client.delete(f"/api/conversations/{made}")

    def _note(self, what: str, name: str, status: int, *, count: int = 1) -> None:
        self.tried += count
        self.refused += 400 <= status < 500
        if status >= 500 and status not in (502, 503):
            self.wrong.append(f"{what} {name!r}: {status}")


async def run(ground: Ground) -> Outcome:
    count = ground.count(CASES, least=2 * _EACH)
    chosen = ground.chance.sample(list(names()), min(-(-count // _EACH), len(list(names()))))
    shell = Shell(ground.place("scratch"))
    config = {"limits": {"requests_per_minute": 0}}
    async with serving(ground.place("server"), config=config) as server:
        client = await server.add_user("ann")
        await client.save_settings()
        name = await client.start_conversation(None)
        namer = Namer(server, client)
        known: list[Any] = []
        executed: list[str] = []
        for one in chosen:
            await namer.try_all(one, name)
            commands = []
            known += [box for box in server.place.agent.sandboxes.values() if box not in known]
            for sandbox in known:
                commands += sandbox.commands
                sandbox.commands.clear()
            done = [await asyncio.to_thread(shell.run, command) for command in commands]
            left = zip(commands, done, strict=True)
            executed += [f"{one!r} in {command!r}" for command, has in left if has]
    if not await asyncio.to_thread(shell.run, f"true; {_DO}"):
        executed.append("what is executed leaves no mark")
    problems = (*executed, *namer.wrong)
    return Outcome(
        did=(
            f"{len(chosen)} names as repository, branch, name and address of a person, file, directory"
            f" and ref; {namer.refused} were refused; the {shell.ran} different commands that"
            " followed for sandboxes were run by a real shell with the real git"
        ),
        figures=(
            Figure(what="cases", value=namer.tried, at_least=count),
            zero("executions", list(problems)),
        ),
        problems=problems,
    )


ROW: Final = Row(name="arguments", half=Half.IN, promise="no argument injection", run=run)
