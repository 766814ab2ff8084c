"""Runs one task: starts its conversation, follows it, and copies its files back."""

import http.client
from contextlib import suppress

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, RequestRefused
from agentsvc.cli.run import RunOptions
from agentsvc.cli.run.files import download_changes, upload_directory
from agentsvc.cli.run.watch import ConversationWatch, RunOutcome, View, report_outcome, start
from agentsvc.cli.talk import CONVERSATIONS, Record, send_message
from agentsvc.cli.text import clean


def run_task(api: Api, options: RunOptions, *, is_removed: bool) -> None:
    """Run a task, show its events, and report its outcome; raises CommandFailed if it failed."""
    view = View(as_json=options.as_json)
    conversation = start(api, options, view)
    watch = ConversationWatch(api, conversation, view, agrees=options.agrees)
    sent, has_work = None, False
    try:
        if options.directory is not None:
            view.busy(f"copying {options.directory}")
            sent = upload_directory(api, conversation, options.directory)
            has_work = True
            try:
                send_message(api, conversation["id"], options.task)
            except RequestRefused as exc:
                # After a 5xx, as of a proxy that timed out, the server may still process the message.
                has_work = exc.status >= http.client.INTERNAL_SERVER_ERROR
                raise
        outcome = watch.follow()
        if options.directory is not None and sent is not None and outcome is not RunOutcome.DELETED:
            view.busy("")
            download_changes(api, conversation, options.directory, sent, agrees=options.agrees)
        elif options.repository and outcome is RunOutcome.FINISHED:
            _show_changes(api, conversation, view)
        has_work = False
        report_outcome(api, conversation, outcome, view)
    finally:
        view.busy("")
        if is_removed and has_work:
            view.say("the conversation is not deleted: the agent's work was not copied back")
        elif is_removed:
            with suppress(CommandFailed):
                api.call("DELETE", f"{CONVERSATIONS}/{conversation['id']}")


def _show_changes(api: Api, conversation: Record, view: View) -> None:
    try:
        changes = api.call("GET", f"{CONVERSATIONS}/{conversation['id']}/git/changes")
    except RequestRefused as exc:
        view.say(f"changed files cannot be listed: {exc.message}")
        return
    for change in changes:
        click.echo(f"{change['status'].lower()}: {clean(change['path'])}", err=True)
