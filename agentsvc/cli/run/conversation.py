"""Carries out one task: starts its conversation, follows it, brings its files back."""

import time
from contextlib import suppress
from typing import Any, Final

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, RequestRefused
from agentsvc.cli.run import RunOptions
from agentsvc.cli.run.files import bring_back, send_directory
from agentsvc.cli.run.watch import ConversationWatch, RunOutcome, View, end
from agentsvc.cli.talk import CONVERSATIONS, Record, find_conversation, send_message
from agentsvc.cli.text import clean, words

_POLL_SECONDS: Final = 0.2
_NOTABLE_PART: Final = 10
"""A stage is named if the start took at most so many times as long."""


def carry_out(api: Api, wanted: RunOptions, *, is_removed: bool) -> None:
    """Let an agent do a task, show it, and say how it ended; raises CommandFailed if it failed."""
    view = View(as_json=wanted.as_json)
    conversation = start(api, wanted, view)
    watch = ConversationWatch(api, conversation, view, agrees=wanted.agrees)
    try:
        sent = None
        if wanted.directory is not None:
            view.busy(f"copying {wanted.directory}")
            sent = send_directory(api, conversation, wanted.directory)
            send_message(api, conversation["id"], wanted.task)
        outcome = watch.follow()
        if wanted.directory is not None and sent is not None and outcome is not RunOutcome.DELETED:
            view.busy("")
            bring_back(api, conversation, wanted.directory, sent, agrees=wanted.agrees)
        elif wanted.repository and outcome is RunOutcome.FINISHED:
            _show_changes(api, conversation, view)
        end(api, conversation, outcome, view)
    finally:
        view.busy("")
        if is_removed:
            with suppress(CommandFailed):
                api.call("DELETE", f"{CONVERSATIONS}/{conversation['id']}")


def start(api: Api, wanted: RunOptions, view: View) -> Record:
    """Start the conversation and return it once it is ready."""
    body: dict[str, Any] = {
        "selected_repository": wanted.repository,
        "selected_branch": wanted.branch,
        "llm_model": wanted.model,
        "title": wanted.title,
    }
    if wanted.directory is None:
        text = {"type": "text", "text": wanted.task}
        body["initial_message"] = {"role": "user", "content": [text]}
    asked = {name: value for name, value in body.items() if value is not None}
    return wait_until_ready(api, api.call("POST", CONVERSATIONS, body=asked), view)


def wait_until_ready(api: Api, task: Record, view: View) -> Record:
    """Show how a start goes on, and return its conversation; raises CommandFailed if it fails."""
    status = ""
    while True:
        if task["status"] != status:
            status = task["status"]
            view.busy(words(status))
            view.line({"type": "start", "status": status, "detail": task["detail"]})
        if status == "READY":
            view.say(took(task.get("stages", [])))
            return find_conversation(api, task["app_conversation_id"])
        if status == "ERROR":
            view.busy("")
            raise CommandFailed(f"the conversation did not start: {task['detail']}")
        time.sleep(_POLL_SECONDS)
        task = api.call("GET", f"{CONVERSATIONS}/start-tasks", query={"ids": task["id"]})[0]


def took(stages: list[Record]) -> str:
    """Return what a start took, and which of its stages took a notable part of that."""
    times = {stage["status"]: stage["duration_ms"] or 0 for stage in stages}
    whole = sum(times.values())
    long = {name: ms for name, ms in times.items() if ms * _NOTABLE_PART >= whole > 0}
    listed = ", ".join(f"{words(name)} {ms / 1000:.1f} s" for name, ms in long.items())
    return f"ready after {whole / 1000:.1f} s ({listed})" if listed else "ready"


def _show_changes(api: Api, conversation: Record, view: View) -> None:
    try:
        changes = api.call("GET", f"{CONVERSATIONS}/{conversation['id']}/git/changes")
    except RequestRefused as exc:
        view.say(f"what was changed cannot be listed: {exc.message}")
        return
    for change in changes:
        click.echo(f"{change['status'].lower()}: {clean(change['path'])}", err=True)
