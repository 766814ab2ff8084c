"""`agentsvc demo`: a complete conversation on a temporary server, with a scripted model."""

import asyncio
import json
import shlex
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from agentsvc.base import Secret, monotonic, new_key
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import KEY_HEADER, V1, Api
from agentsvc.cli.options import example
from agentsvc.cli.private import PrivateServer, check_installed, choose_isolation
from agentsvc.cli.show.notes import Event, find_created_file, find_outcome, to_note
from agentsvc.cli.show.screen import Screen, open_screen
from agentsvc.cli.talk import CONVERSATIONS, SANDBOXES, Record, find_conversation, user_message
from agentsvc.cli.text import words
from agentsvc.testing import MODEL, ScriptedModel

V0: Final = "/api"
_TASK: Final = "Look around, write a small program, and run it."
_LONGEST_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("demo", epilog=example("agentsvc demo --keep"))
@click.option(
    "--keep", is_flag=True, help="Keep the server running until Ctrl-C, and print commands to try."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port of the server; default: any free one.",
)
def command(*, keep: bool, port: int) -> None:
    """Show one agent at work, on a temporary server that is removed afterwards.

    The agent, its sandbox and its tools are real. Only the language model is scripted, so neither an
    API key nor network access is needed.
    """
    check_installed(
        "the demo",
        "install the extra `agent`: pip install 'agentsvc[agent]',"
        " or in a checkout: bash .ci/setup install agent,cli",
    )
    directory = Path(tempfile.mkdtemp(prefix="agentsvc-demo-"))
    try:
        asyncio.run(_Demo(open_screen(), directory, port=port).run(keep=keep))
    except asyncio.CancelledError:
        click.echo("stopped; everything is removed", err=True)
        raise SystemExit(0 if keep else 1) from None
    finally:
        shutil.rmtree(directory)


class _Demo:
    """One run of the demo: its screen, and the measured durations."""

    def __init__(self, screen: Screen, directory: Path, *, port: int) -> None:
        self._screen = screen
        self._directory = directory
        self._port = port
        self._began = monotonic()
        self._stages: list[tuple[str, float]] = []
        self._key_file = Path()

    async def run(self, *, keep: bool) -> None:
        """Run the demo; the server is stopped in any case."""
        _cancel_on_signal()
        key = new_key("asvc_")
        async with ScriptedModel() as model, self._server(key) as url:
            api = Api(url, key)
            with self._measured("settings, by V0"):
                llm = {"llm_model": f"openai/{MODEL}", "llm_base_url": model.url}
                settings = {**llm, "llm_api_key": model.key.reveal()}
                await ask(api, "POST", f"{V0}/settings", body=settings)
            conversation_id = await self._start(api)
            await self._watch(api, conversation_id)
            if keep:
                self._show_times()
                await self._wait_for_interrupt(url, conversation_id)
            with self._measured("removal"):
                await ask(api, "DELETE", f"{CONVERSATIONS}/{conversation_id}")
        self._show_times()

    @asynccontextmanager
    async def _server(self, key: Secret) -> AsyncIterator[str]:
        self._screen.title("A server of its own")
        server = PrivateServer(self._directory, key, port=self._port)
        self._key_file = server.key_file
        server.start(await choose_isolation(self._directory))
        try:
            with self._measured("server"):
                self._screen.busy("starting")
                url = await asyncio.to_thread(server.read_url)
            self._screen.line(f"\n  {url}, everything it keeps is in {self._directory}\n")
            yield url
        except CommandFailed:
            click.echo(f"the server's last log lines:\n{server.last_log_lines()}\n", err=True)
            raise
        finally:
            self._screen.busy("")
            began = monotonic()
            server.stop()
            self._stages.append(("stop of the server", monotonic() - began))

    async def _start(self, api: Api) -> str:
        self._screen.title("A conversation, by V1")
        began = monotonic()
        asked = {"initial_message": user_message(_TASK)}
        task = await ask(api, "POST", CONVERSATIONS, body=asked)
        async for seen in follow_start(api, task):
            if seen["status"] != task["status"]:
                self._end_stage(words(task["status"]), began)
                began, task = monotonic(), seen
            self._screen.busy(words(task["status"]))
        if task["status"] == "ERROR":
            raise CommandFailed(f"the conversation did not start: {task['detail']}")
        self._screen.busy("")
        [sandbox] = await ask(api, "GET", SANDBOXES, query={"id": task["sandbox_id"]})
        self._screen.line(f"\n  isolation of its sandbox: {sandbox['isolation']}\n")
        return str(task["app_conversation_id"])

    async def _watch(self, api: Api, conversation_id: str) -> None:
        self._screen.title("The agent at work")
        self._screen.busy("working")
        began = monotonic()
        events: list[Event] = []
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                await self._show_events(api, conversation_id, events)
        except TimeoutError as exc:
            raise CommandFailed("the agent did not finish in time") from exc
        self._stages.append(("the agent's work", monotonic() - began))
        self._screen.busy("")
        outcome, path = find_outcome(events), find_created_file(events)
        if outcome != "finished" or path is None:
            raise CommandFailed(f"the agent did not finish, its run ended with: {outcome}")
        self._screen.title("The file that it wrote, read from its sandbox")
        text = await asyncio.to_thread(read_file, api, conversation_id, path)
        self._screen.file(path, text)

    async def _show_events(self, api: Api, conversation_id: str, events: list[Event]) -> None:
        async for event in follow_events(api, conversation_id):
            events.append(event)
            self._screen.note(to_note(event))
            if find_outcome(events):
                return

    async def _wait_for_interrupt(self, url: str, conversation_id: str) -> None:
        self._screen.title("Commands to try, until Ctrl-C removes everything")
        for what, line in commands_to_try(url, self._key_file, conversation_id):
            self._screen.line(f"# {what}\n{line}\n")
        await asyncio.Event().wait()

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        began = monotonic()
        yield
        self._end_stage(name, began)

    def _end_stage(self, name: str, began: float) -> None:
        took = monotonic() - began
        self._stages.append((name, took))
        self._screen.stage(name, f"{took:.2f} s")

    def _show_times(self) -> None:
        self._screen.title("How long it took")
        rows = [(name, f"{took:.2f} s") for name, took in self._stages]
        total = f"{monotonic() - self._began:.2f} s"
        self._screen.table(("Stage", "Time"), [*rows, ("total", total)])


async def ask(api: Api, method: str, path: str, **asked: Any) -> Any:
    """Call the server in a thread, because the scripted model runs in this event loop."""
    return await asyncio.to_thread(api.call, method, path, **asked)


async def follow_start(api: Api, task: Record) -> AsyncIterator[Record]:
    """Yield the start task after each change of its status, until READY or ERROR."""
    yield task
    while task["status"] not in {"READY", "ERROR"}:
        await asyncio.sleep(_POLL_SECONDS)
        [found] = await ask(api, "GET", f"{CONVERSATIONS}/start-tasks", query={"ids": task["id"]})
        if found["status"] != task["status"]:
            yield found
        task = found


async def follow_events(api: Api, conversation_id: str) -> AsyncGenerator[Event]:
    """Yield each event of a conversation as soon as the server has it, without end."""
    path = f"{V1}/conversation/{conversation_id}/events/search"
    seen: set[str] = set()
    while True:
        # Events may arrive out of order, so each search starts at the beginning.
        for event in await asyncio.to_thread(lambda: list(api.pages(path))):
            if event["id"] not in seen:
                seen.add(event["id"])
                yield event
        await asyncio.sleep(_POLL_SECONDS)


def read_file(api: Api, conversation_id: str, path: str) -> str:
    """Return the text of a file in the sandbox, downloaded from its agent server."""
    sandbox_id = find_conversation(api, conversation_id)["sandbox_id"]
    place = f"/sandboxes/{sandbox_id}/agent/api/file/download"
    return b"".join(api.parts(place, {"path": path})).decode()


def commands_to_try(url: str, key_file: Path, conversation_id: str) -> list[tuple[str, str]]:
    """Return shell commands for both generations of the API, each with a description.

    They read the key from its file, so that the printed commands do not contain it.
    """
    message = user_message("Once more.")
    key = f"$(cat {shlex.quote(str(key_file))})"

    def curl(path: str, body: Any = None) -> str:
        data = f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
        sent = "" if body is None else data
        return f"curl -sS -H \"{KEY_HEADER}: {key}\"{sent} '{url}{path}'"

    return [
        ("V0: the conversations", curl(f"{V0}/conversations")),
        ("V0: the events of this one", curl(f"{V0}/conversations/{conversation_id}/events")),
        ("V0: another conversation", curl(f"{V0}/conversations", {"initial_user_msg": _TASK})),
        ("V1: the conversations", curl(f"{V1}/app-conversations/search")),
        ("V1: the events of this one", curl(f"{V1}/conversation/{conversation_id}/events/search")),
        ("V1: another conversation", curl(f"{V1}/app-conversations", {"initial_message": message})),
    ]


def _cancel_on_signal() -> None:
    """Cancel the current task on the first signal; ignore later ones, during the removal."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def stop() -> None:
        if task is not None and not task.cancelling():
            task.cancel()
            click.echo("\nremoving everything …", err=True)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
