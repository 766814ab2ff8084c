"""Carries out one task: starts its conversation, follows it, brings its files back."""

import time
from contextlib import suppress
from typing import Any, Final

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, RequestRefused
from agentsvc.cli.run import RunOptions
from agentsvc.cli.run.files import download_changes, upload_directory
from agentsvc.cli.run.watch import ConversationWatch, RunOutcome, View, report_outcome
from agentsvc.cli.talk import CONVERSATIONS, Record, find_conversation, send_message
from agentsvc.cli.text import clean, words

_POLL_SECONDS: Final = 0.2
_NOTABLE_PART: Final = 10
"""A stage is named if the start took at most so many times as long."""


def run_task(api: Api, options: RunOptions, *, is_removed: bool) -> None:
    """Let an agent do a task, show it, and say how it ended; raises CommandFailed if it failed."""
    view = View(as_json=options.as_json)
    conversation = start(api, options, view)
    watch = ConversationWatch(api, conversation, view, agrees=options.agrees)
    try:
        sent = None
        if options.directory is not None:
            view.busy(f"copying {options.directory}")
            sent = upload_directory(api, conversation, options.directory)
            send_message(api, conversation["id"], options.task)
        outcome = watch.follow()
        if options.directory is not None and sent is not None and outcome is not RunOutcome.DELETED:
            view.busy("")
            download_changes(api, conversation, options.directory, sent, agrees=options.agrees)
        elif options.repository and outcome is RunOutcome.FINISHED:
            _show_changes(api, conversation, view)
        report_outcome(api, conversation, outcome, view)
    finally:
        view.busy("")
        if is_removed:
            with suppress(CommandFailed):
                api.call("DELETE", f"{CONVERSATIONS}/{conversation['id']}")


def start(api: Api, options: RunOptions, view: View) -> Record:
    """Start the conversation and return it once it is ready."""
    body: dict[str, Any] = {
        "selected_repository": options.repository,
        "selected_branch": options.branch,
        "llm_model": options.model,
        "title": options.title,
    }
    if options.directory is None:
        text = {"type": "text", "text": options.task}
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
            view.say(describe_duration(task.get("stages", [])))
            return find_conversation(api, task["app_conversation_id"])
        if status == "ERROR":
            view.busy("")
            raise CommandFailed(f"the conversation did not start: {task['detail']}")
        time.sleep(_POLL_SECONDS)
        task = api.call("GET", f"{CONVERSATIONS}/start-tasks", query={"ids": task["id"]})[0]


def describe_duration(stages: list[Record]) -> str:
    """Return what a start took, and which of its stages took a notable part of that."""
    times = {stage["status"]: stage["duration_ms"] or 0 for stage in stages}
    total = sum(times.values())
    long = {name: ms for name, ms in times.items() if ms * _NOTABLE_PART >= total > 0}
    listed = ", ".join(f"{words(name)} {ms / 1000:.1f} s" for name, ms in long.items())
    return f"ready after {total / 1000:.1f} s ({listed})" if listed else "ready"


def _show_changes(api: Api, conversation: Record, view: View) -> None:
    try:
        changes = api.call("GET", f"{CONVERSATIONS}/{conversation['id']}/git/changes")
    except RequestRefused as exc:
        view.say(f"what was changed cannot be listed: {exc.message}")
        return
    for change in changes:
        click.echo(f"{change['status'].lower()}: {clean(change['path'])}", err=True)
