"""`agentsvc chat`: an interactive conversation with an agent in the terminal."""

import queue
import sys
import threading
from collections.abc import Callable
from typing import Final

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, StreamMessage
from agentsvc.cli.options import example
from agentsvc.cli.run import RunOptions
from agentsvc.cli.run.watch import View, start
from agentsvc.cli.server import IdParam, ServerChoice, get_api, server_options
from agentsvc.cli.talk import (
    CONVERSATIONS,
    EventStream,
    Record,
    answer_agent,
    ask_agent,
    find_conversation,
    send_message,
    spent,
    state_of,
    wake,
)
from agentsvc.cli.text import SHORT_ID

_RETRY_SECONDS: Final = 1.0
_HELP: Final = """\
/confirm          allow the action that the agent wants to take
/reject [REASON]  reject it, with a reason for the agent
/interrupt        interrupt the agent
/resume           let the agent continue
/status           show the agent's state, and tokens and cost so far
/open             print the URL of the conversation in the console
/quit             leave; the agent continues
Anything else is sent to the agent as a message, also while it works."""


@click.command(
    "chat",
    epilog=example('agentsvc chat "Find out why the tests fail"', "agentsvc chat --id 7c9e6679"),
)
@click.argument("task", metavar="[TASK]", required=False)
@click.option(
    "--id",
    "conversation_id",
    type=IdParam(CONVERSATIONS),
    metavar="ID",
    help="Continue this conversation.",
)
@click.option("--repo", metavar="URL", help="Repository to clone first: its URL, or OWNER/NAME.")
@server_options
def command(
    *, task: str | None, conversation_id: str | None, repo: str | None, server: ServerChoice
) -> None:
    """Chat with an agent: send it messages, and see its events live.

    Without TASK and --id, the first line you type starts a conversation. `/help` lists the commands.
    Several terminals can use one conversation at the same time.
    """
    if conversation_id and repo:
        raise click.UsageError("--repo cannot be used with --id")
    api = get_api(server)
    if conversation_id:
        found = wake(api, find_conversation(api, conversation_id))
        if task:
            send_message(api, found["id"], task)
    else:
        text = task or click.prompt("What should the agent do?", err=True)
        wanted = RunOptions(task=text, repository=repo)
        found = start(api, wanted, View(as_json=False))
    Chat(api, found).run()


class Chat:
    """One terminal in a conversation: one thread shows events while another reads lines."""

    def __init__(self, api: Api, conversation: Record) -> None:
        self._api = api
        self._conversation = conversation
        self._view = View(as_json=False)
        self._events = EventStream(api, conversation)
        self._is_over = threading.Event()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Chat until the user leaves, or the conversation is deleted."""
        short = self._conversation["id"][:SHORT_ID]
        click.echo(f"conversation {short}; /help lists the commands", err=True)
        for work in (self._show_events, self._read):
            threading.Thread(target=work, daemon=True).start()
        try:
            while (line := self._lines.get()) is not None:
                try:
                    if not self._run_line(line.strip()):
                        break
                except CommandFailed as exc:
                    exc.show()
        except KeyboardInterrupt:
            pass
        self._is_over.set()
        self._view.busy("")
        click.echo(f"continue with `agentsvc chat --id {short}`", err=True)

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put(None)

    def _run_line(self, line: str) -> bool:
        """Execute a command or send a message; return whether to continue."""
        name, _, rest = line.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: click.echo(_HELP, err=True),
            "/confirm": lambda _: answer_agent(self._api, self._fetch(), accept=True),
            "/reject": self._reject,
            "/interrupt": lambda _: ask_agent(self._api, self._fetch(), "interrupt"),
            "/resume": lambda _: ask_agent(self._api, wake(self._api, self._fetch()), "run"),
            "/status": self._show_status,
            "/open": self._show_address,
        }
        if name in commands:
            commands[name](rest.strip())
        elif name.startswith("/") and "/" not in name[1:]:
            raise CommandFailed(f"unknown command `{name}`", "/help lists the commands")
        elif line:
            send_message(self._api, wake(self._api, self._fetch())["id"], line)
        return True

    def _reject(self, reason: str) -> None:
        answer_agent(self._api, self._fetch(), accept=False, reason=reason)
        click.echo("rejected; tell the agent what to do instead", err=True)

    def _show_status(self, _: str) -> None:
        conversation = self._fetch()
        shown = (state_of(conversation), spent(conversation))
        click.echo(", ".join(filter(None, shown)), err=True)

    def _show_address(self, _: str) -> None:
        click.echo(f"{self._api.url}/#/c/{self._conversation['id']}", err=True)

    def _fetch(self) -> Record:
        return find_conversation(self._api, self._conversation["id"])

    def _show_events(self) -> None:
        while not self._is_over.is_set():
            try:
                for message in self._events.read():
                    if self._is_over.is_set() or not self._show_message(message):
                        return
            except (OSError, CommandFailed):
                self._is_over.wait(_RETRY_SECONDS)

    def _show_message(self, message: StreamMessage) -> bool:
        """Show a message of the stream; return whether more may follow."""
        match message.type:
            case "event":
                self._view.event(message.data)
                if message.data.get("value") == "waiting_for_confirmation":
                    self._view.say("The agent asks: /confirm or /reject [REASON]")
            case "delta":
                self._view.delta(str(message.data.get("content") or ""))
            case "end":
                self._view.say("the conversation has ended")
                self._lines.put(None)
                return False
            case _:
                pass
        return True
