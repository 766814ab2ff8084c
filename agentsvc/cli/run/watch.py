"""Starts and follows one conversation in a terminal: asks for confirmation, handles Ctrl-C."""

import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import click

from agentsvc.cli import CommandFailed, printable
from agentsvc.cli.client import Api, StreamBroken, StreamMessage
from agentsvc.cli.run import RunOptions
from agentsvc.cli.show.notes import Event, to_note
from agentsvc.cli.show.screen import Screen, open_screen
from agentsvc.cli.talk import (
    CONVERSATIONS,
    EventStream,
    Record,
    ask_agent,
    find_conversation,
    send_message,
    spent,
    user_message,
    wake,
)
from agentsvc.cli.text import SHORT_ID, clean, json_line, words

_POLL_SECONDS: Final = 0.2
_NOTABLE_PART: Final = 10
"""A stage is listed if it took at least the total divided by this number."""
_RETRY_SECONDS: Final = 0.5
_MAX_FAILURES: Final = 120
"""Reconnects for about a minute, in which a server can restart."""
_REJECTED: Final = "The user rejected this action."


class RunOutcome(StrEnum):
    """How following a conversation ended."""

    FINISHED = "finished"
    ERROR = "error"
    STUCK = "stuck"
    LEFT = "left"
    DELETED = "deleted"


class View:
    """Output of a conversation: notes for people, or JSON lines for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._screen: Screen | None = None if as_json else open_screen()
        self._draft = ""

    def event(self, event: Event) -> None:
        """Show an event."""
        if self._screen is None:
            self.line({"type": "event", "event": event})
            return
        note = to_note(event)
        if note.parts:
            self._end_draft()
            self._screen.note(note)

    def delta(self, text: str) -> None:
        """Append to the model's partial answer, if the screen can show one."""
        if self._screen is not None and text:
            self._draft += printable(text)
            self._screen.draft(self._draft)

    def _end_draft(self) -> None:
        if self._screen is not None and self._draft:
            self._draft = ""
            self._screen.draft("")

    def line(self, record: Mapping[str, Any]) -> None:
        """Print a record as a JSON line; does nothing without `as_json`."""
        if self.as_json:
            click.echo(json_line(record))

    def busy(self, text: str) -> None:
        """Show a progress text, if the screen can erase it later; an empty text erases it."""
        if self._screen is not None:
            self._end_draft()
            self._screen.busy(text)

    def say(self, text: str) -> None:
        """Print a message that is not part of the conversation to standard error."""
        self.busy("")
        click.echo(printable(text), err=True)


def start(api: Api, options: RunOptions, view: View) -> Record:
    """Start a conversation and return it once it is ready."""
    body: dict[str, Any] = {
        "selected_repository": options.repository,
        "selected_branch": options.branch,
        "llm_model": options.model,
        "title": options.title,
    }
    if options.directory is None:
        body["initial_message"] = user_message(options.task)
    asked = {name: value for name, value in body.items() if value is not None}
    return wait_until_ready(api, api.call("POST", CONVERSATIONS, body=asked), view)


def wait_until_ready(api: Api, task: Record, view: View) -> Record:
    """Show the progress of a start, and return its conversation; raises CommandFailed on failure."""
    status = ""
    while True:
        if task["status"] != status:
            status = task["status"]
            view.busy(words(status))
            view.line({"type": "start", "status": status, "detail": task["detail"]})
        if status == "READY":
            view.say(describe_duration(task.get("stages", [])))
            return find_conversation(api, task["app_conversation_id"])
        if status == "ERROR":
            view.busy("")
            raise CommandFailed(f"the conversation did not start: {task['detail']}")
        time.sleep(_POLL_SECONDS)
        task = api.call("GET", f"{CONVERSATIONS}/start-tasks", query={"ids": task["id"]})[0]


def describe_duration(stages: list[Record]) -> str:
    """Return a text with the duration of a start, and of its longest stages."""
    times = {stage["status"]: stage["duration_ms"] or 0 for stage in stages}
    total = sum(times.values())
    long = {name: ms for name, ms in times.items() if ms * _NOTABLE_PART >= total > 0}
    listed = ", ".join(f"{words(name)} {ms / 1000:.1f} s" for name, ms in long.items())
    return f"ready after {total / 1000:.1f} s ({listed})" if listed else "ready"


class ConversationWatch:
    """Follows one conversation until its agent is done."""

    def __init__(self, api: Api, conversation: Record, view: View, *, agrees: bool) -> None:
        self._api = api
        self._conversation = conversation
        self._view = view
        self._agrees = agrees
        self._events = EventStream(api, conversation)
        self._is_live = False
        self._is_interrupted = False
        self._status = ""
        self._is_settled = True
        self._pending: dict[str, Event] = {}

    def skip_past_events(self) -> None:
        """Skip the stored events, so that only new ones are shown."""
        for message in self._events.read():
            if message.type == "ready":
                return

    def follow(self) -> RunOutcome:
        """Show events until the agent is done or the user leaves; reconnects to the stream."""
        failures, pause = 0, 0.0
        while True:
            seen = self._events.last
            try:
                time.sleep(pause)
                pause = _RETRY_SECONDS
                outcome = self._read()
                failures = 0
            except StreamBroken as exc:
                outcome = None
                failures = failures + 1 if self._events.last == seen else 0
                if failures > _MAX_FAILURES:
                    hint = f"agentsvc conversations follow {self._conversation['id']}"
                    reason = f"the connection to the server was lost: {exc}"
                    raise CommandFailed(reason, f"follow it again with `{hint}`") from exc
            except KeyboardInterrupt:
                outcome = self._interrupt()
            if outcome is not None:
                return outcome

    def _read(self) -> RunOutcome | None:
        """Read the stream to its end; the next call continues after the last event."""
        self._is_live = False
        for message in self._events.read():
            outcome = self._handle(message)
            if outcome is not None:
                return outcome
        return None

    def _handle(self, message: StreamMessage) -> RunOutcome | None:
        match message.type:
            case "event":
                self._show_event(message.data)
            case "delta":
                self._view.delta(str(message.data.get("content") or ""))
                return None
            case "ready":
                self._is_live = True
            case "end":
                is_deleted = message.data.get("reason") == "deleted"
                return RunOutcome.DELETED if is_deleted else RunOutcome.LEFT
            case _:
                return None
        return self._handle_status() if self._is_live and not self._is_settled else None

    def _show_event(self, event: Event) -> None:
        if event.get("kind") == "ActionEvent":
            self._pending[str(event.get("id"))] = event
        elif event.get("action_id"):
            self._pending.pop(str(event["action_id"]), None)
        if event.get("key") == "execution_status":
            self._status, self._is_settled = str(event.get("value")), False
        self._view.event(event)

    def _handle_status(self) -> RunOutcome | None:
        """React to the agent's execution status; return the outcome once there is one."""
        self._is_settled = True
        match self._status:
            case "finished" | "error" | "stuck":
                return RunOutcome(self._status)
            case "waiting_for_confirmation":
                return self._confirm()
            case "paused" if self._is_interrupted:
                return self._ask_for_message()
            case "paused":
                self._view.say("paused; resume it with `agentsvc conversations resume`")
            case "running":
                self._view.busy("working, Ctrl-C interrupts")
            case _:
                pass
        return None

    def _confirm(self) -> RunOutcome | None:
        self._view.busy("")
        agreed = self._agrees
        if not agreed:
            if not sys.stdin.isatty():
                self._view.say("the agent waits for confirmation; standard input is no terminal")
                return RunOutcome.LEFT
            names = clean(", ".join(str(one.get("tool_name")) for one in self._pending.values()))
            try:
                agreed = click.confirm(f"Let the agent do this ({names})?", err=True)
            except click.Abort:
                return RunOutcome.LEFT
        body = {"accept": agreed, **({} if agreed else {"reason": _REJECTED})}
        ask_agent(self._api, self._conversation, "events/respond_to_confirmation", body)
        return None if agreed else self._ask_for_message()

    def _interrupt(self) -> RunOutcome | None:
        """Interrupt the agent; the second time, leave."""
        if self._is_interrupted:
            return RunOutcome.LEFT
        self._is_interrupted = True
        self._view.say("\ninterrupting the agent; Ctrl-C again leaves")
        try:
            ask_agent(self._api, self._conversation, "interrupt")
        except KeyboardInterrupt:
            return RunOutcome.LEFT
        return None

    def _ask_for_message(self) -> RunOutcome | None:
        """Prompt for a message to a waiting agent; an empty message leaves."""
        self._view.busy("")
        if not sys.stdin.isatty():
            return RunOutcome.LEFT
        try:
            text = click.prompt(
                "Message to the agent (empty to leave)", default="", show_default=False, err=True
            )
        except click.Abort:
            return RunOutcome.LEFT
        if not text.strip():
            return RunOutcome.LEFT
        self._is_interrupted = False
        send_message(self._api, self._conversation["id"], text)
        return None


def send_and_follow(api: Api, conversation: Record, text: str, *, as_json: bool) -> None:
    """Send a message to a conversation and follow it; raises CommandFailed unless it succeeds."""
    view = View(as_json=as_json)
    conversation = wake(api, conversation)
    watch = ConversationWatch(api, conversation, view, agrees=False)
    watch.skip_past_events()
    send_message(api, conversation["id"], text)
    report_outcome(api, conversation, watch.follow(), view)


def follow_on(api: Api, conversation: Record, *, as_json: bool) -> None:
    """Follow a conversation from its first event; raises CommandFailed unless it succeeds."""
    view = View(as_json=as_json)
    watch = ConversationWatch(api, conversation, view, agrees=False)
    report_outcome(api, conversation, watch.follow(), view)


def report_outcome(api: Api, conversation: Record, outcome: RunOutcome, view: View) -> None:
    """Print the outcome and the cost; raises CommandFailed unless the agent finished."""
    view.busy("")
    is_there = outcome is not RunOutcome.DELETED
    latest = find_conversation(api, conversation["id"]) if is_there else conversation
    result = {"type": "result", "conversation_id": conversation["id"], "outcome": str(outcome)}
    view.line({**result, "metrics": latest.get("metrics")})
    used = spent(latest)
    click.echo(f"conversation {conversation['id']}" + (f", {used}" if used else ""), err=True)
    if is_there:
        click.echo(f"view:     {api.url}/#/c/{conversation['id']}", err=True)
    if outcome is RunOutcome.FINISHED:
        short_id = conversation["id"][:SHORT_ID]
        click.echo(f"continue: agentsvc conversations send {short_id} TEXT --follow", err=True)
    if outcome is RunOutcome.LEFT:
        hint = f"continue with `agentsvc conversations send {conversation['id']} TEXT --follow`"
        raise CommandFailed("the agent has not finished", hint)
    if outcome is not RunOutcome.FINISHED:
        raise CommandFailed(f"the agent did not finish, its run ended with: {outcome}")
