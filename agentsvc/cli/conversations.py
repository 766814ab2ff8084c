"""`agentsvc conversations`: lists, shows and controls conversations of a server."""

import itertools
import sys
from pathlib import Path
from typing import Final

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import PAGE, V1, Api
from agentsvc.cli.download import save
from agentsvc.cli.options import example, json_option, yes_option
from agentsvc.cli.run.watch import View, follow_on, send_and_follow, wait_until_ready
from agentsvc.cli.server import IdParam, ServerChoice, found_options, get_api, server_options
from agentsvc.cli.show.notes import to_note
from agentsvc.cli.show.screen import open_screen
from agentsvc.cli.talk import (
    CONVERSATIONS,
    Record,
    answer_agent,
    ask_agent,
    check_text,
    cost_of,
    find_conversation,
    send_message,
    state_of,
    user_message,
    wake,
)
from agentsvc.cli.text import (
    SHORT_ID,
    ago,
    columns,
    fields,
    json_text,
    moment,
    print_found,
    short,
    terminal_width,
)
from agentsvc.cli.text import confirm as ask_to_confirm

_SHOWN_EVENTS: Final = ("MessageEvent", "ConversationErrorEvent")
_SHOWN: Final = (
    "id",
    "title",
    "execution_status",
    "sandbox_status",
    "sandbox_id",
    "selected_repository",
    "selected_branch",
    "llm_model",
    "metrics",
    "created_at",
    "updated_at",
    "conversation_url",
)


_of_conversation: Final = found_options(find_conversation, IdParam(CONVERSATIONS))


@click.group(
    "conversations",
    epilog=example(
        "agentsvc conversations list",
        'agentsvc conversations send 7c9e66797425 "Now write the tests"',
    ),
)
def command() -> None:
    """List, show and control conversations."""


@command.command("list", epilog=example("agentsvc conversations list --search login --json"))
@click.option("--search", metavar="TEXT", help="Only conversations whose title contains TEXT.")
@click.option("--limit", default=50, type=click.IntRange(1, 10_000), help="Maximum; default: 50.")
@json_option
@server_options
def list_conversations(
    *, search: str | None, limit: int, as_json: bool, server: ServerChoice
) -> None:
    """List conversations, newest first."""
    query: dict[str, str | int] = {"limit": min(limit, PAGE)}
    if search:
        query["title__contains"] = search
    found = get_api(server).pages(f"{CONVERSATIONS}/search", query)
    items = list(itertools.islice(found, limit))
    width = terminal_width()
    # Full ids unless the output is a terminal, because programs may read them.
    length = SHORT_ID if width else None
    rows = [
        (
            item["id"][:length],
            _state(item),
            cost_of(item),
            ago(item["updated_at"]),
            short(item["title"]),
        )
        for item in items
    ]
    table = columns(("ID", "STATE", "COST", "UPDATED", "TITLE"), rows, width=width)
    print_found(items, table, as_json=as_json)


def _state(item: Record) -> str:
    """Return the state of a conversation as one word."""
    state = state_of(item)
    return "asks" if state == "waiting_for_confirmation" else state


@command.command(epilog=example("agentsvc conversations show 7c9e66797425"))
@json_option
@_of_conversation
def show(*, as_json: bool, api: Api, found: Record) -> None:
    """Show the conversation with this ID or prefix of an ID, with its messages and errors."""
    if as_json:
        click.echo(json_text(found))
        return
    click.echo("\n".join([*fields({name: found.get(name) for name in _SHOWN}), ""]))
    screen = open_screen()
    url = f"{V1}/conversation/{found['id']}/events/search"
    events = [event for kind in _SHOWN_EVENTS for event in api.pages(url, {"kind__eq": kind})]
    for event in sorted(events, key=lambda event: str(event.get("timestamp"))):
        screen.note(to_note(event))


@command.command(
    epilog=example('agentsvc conversations send 7c9e66797425 "Now write the tests" --follow')
)
@click.argument("conversation_id", type=IdParam(CONVERSATIONS), metavar="ID")
@click.argument("text", metavar="TEXT")
@click.option(
    "--follow", "is_followed", is_flag=True, help="Show the agent's events until it is done."
)
@json_option
@server_options
def send(
    conversation_id: str, text: str, *, is_followed: bool, as_json: bool, server: ServerChoice
) -> None:
    """Send a message to the conversation with this ID; `-` reads it from standard input.

    A paused sandbox is resumed first.
    """
    api = get_api(server)
    found = find_conversation(api, conversation_id)
    said = sys.stdin.read() if text == "-" else text
    check_text(said, "message")
    if not is_followed:
        wake(api, found)
        send_message(api, found["id"], said)
        click.echo(f"sent to {found['id']}", err=True)
        return
    send_and_follow(api, found, said, as_json=as_json)


@command.command(epilog=example("agentsvc conversations follow 7c9e66797425"))
@json_option
@_of_conversation
def follow(*, as_json: bool, api: Api, found: Record) -> None:
    """Show the conversation with this ID, and follow it until its agent is done."""
    follow_on(api, found, as_json=as_json)


@command.command(epilog=example("agentsvc conversations confirm 7c9e66797425"))
@_of_conversation
def confirm(*, api: Api, found: Record) -> None:
    """Allow the action for which the agent asks for confirmation."""
    answer_agent(api, found, accept=True)
    click.echo(f"confirmed; {found['id']} continues", err=True)


@command.command(
    epilog=example('agentsvc conversations reject 7c9e66797425 --reason "Use the test database"')
)
@click.option("--reason", default="", metavar="TEXT", help="Reason for the agent.")
@_of_conversation
def reject(*, reason: str, api: Api, found: Record) -> None:
    """Reject the action for which the agent asks for confirmation; it then waits for a message."""
    answer_agent(api, found, accept=False, reason=reason)
    hint = f"agentsvc conversations send {found['id'][:SHORT_ID]} TEXT"
    click.echo(f"rejected; tell it what to do with `{hint}`", err=True)


@command.command(epilog=example("agentsvc conversations interrupt 7c9e66797425"))
@_of_conversation
def interrupt(*, api: Api, found: Record) -> None:
    """Interrupt the agent; its sandbox keeps running."""
    ask_agent(api, found, "interrupt")
    click.echo(f"{found['id']} is interrupted", err=True)


@command.command(epilog=example("agentsvc conversations pause 7c9e66797425 --now"))
@click.option("--now", is_flag=True, help="Interrupt the current step.")
@_of_conversation
def pause(*, now: bool, api: Api, found: Record) -> None:
    """Pause the agent after its current step; its sandbox keeps running."""
    ask_agent(api, found, "interrupt" if now else "pause")
    click.echo(f"{found['id']} is paused", err=True)


@command.command(epilog=example("agentsvc conversations resume 7c9e66797425"))
@_of_conversation
def resume(*, api: Api, found: Record) -> None:
    """Resume a paused agent, and before that its sandbox if it is paused."""
    woken = wake(api, found)
    ask_agent(api, woken, "run")
    click.echo(f"{woken['id']} continues", err=True)


@command.command(
    epilog=example('agentsvc conversations fork 7c9e66797425 --message "Try it without a cache"')
)
@click.option("--title", metavar="TEXT", help="Title of the copy; default: the same.")
@click.option("--message", metavar="TEXT", help="First message to its agent; default: it waits.")
@click.option("--until", metavar="EVENT", help="Id of the last event to copy; default: all.")
@json_option
@_of_conversation
def fork(
    *,
    title: str | None,
    message: str | None,
    until: str | None,
    as_json: bool,
    api: Api,
    found: Record,
) -> None:
    """Continue with a copy of a conversation and its files, in a new sandbox.

    The conversation with this ID is not changed. Prints the id of the copy.
    """
    body: Record = {"title": title, "up_to_event_id": until}
    if message is not None:
        check_text(message, "message")
        body["initial_message"] = user_message(message)
    task = api.call("POST", f"{CONVERSATIONS}/{found['id']}/fork", body=body)
    made = wait_until_ready(api, task, View(as_json=False))
    click.echo(json_text(made) if as_json else made["id"])


@command.command(epilog=example("agentsvc conversations checkpoints 7c9e66797425"))
@json_option
@_of_conversation
def checkpoints(*, as_json: bool, api: Api, found: Record) -> None:
    """List the checkpoints of a conversation's files, newest first."""
    known = api.call("GET", f"{CONVERSATIONS}/{found['id']}/checkpoints")["items"]
    rows = [(one["id"], moment(one["created_at"])) for one in known]
    print_found(known, columns(("ID", "FILES OF (UTC)"), rows), as_json=as_json)


@command.command(epilog=example("agentsvc conversations rollback 7c9e66797425 --yes"))
@click.option("--to", "wanted", metavar="CHECKPOINT", help="Checkpoint id; default: the newest.")
@yes_option
@_of_conversation
def rollback(*, wanted: str | None, yes: bool, api: Api, found: Record) -> None:
    """Restore the files of a conversation from a checkpoint, made before a turn of its agent."""
    path = f"{CONVERSATIONS}/{found['id']}"
    if wanted is None:
        known = api.call("GET", f"{path}/checkpoints")["items"]
        if not known:
            raise CommandFailed(
                "this conversation has no checkpoint", "see `sandboxes.checkpoints` of the server"
            )
        wanted = known[0]["id"]
    ask_to_confirm(f"Restore the files of `{short(found['title'])}`?", is_agreed=yes)
    api.call("POST", f"{path}/rollback", body={"checkpoint_id": wanted})
    click.echo(f"the files of {found['id']} are restored", err=True)


@command.command(epilog=example("agentsvc conversations delete 7c9e66797425 --yes"))
@yes_option
@_of_conversation
def delete(*, yes: bool, api: Api, found: Record) -> None:
    """Delete the conversation with this ID, and its sandbox unless another conversation uses it."""
    ask_to_confirm(f"Delete `{short(found['title'])}` ({found['id']})?", is_agreed=yes)
    api.call("DELETE", f"{CONVERSATIONS}/{found['id']}")
    click.echo(f"{found['id']} is deleted", err=True)


@command.command(epilog=example("agentsvc conversations export 7c9e66797425 --output talk.zip"))
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="File to write, - for standard output; default: ID.zip.",
)
@_of_conversation
def export(*, output: Path | None, api: Api, found: Record) -> None:
    """Write the conversation with this ID and all of its events to a zip file."""
    file = output or Path(f"{found['id']}.zip")
    save(api.parts(f"{CONVERSATIONS}/{found['id']}/download"), file)
    if str(file) != "-":
        click.echo(f"written: {file}", err=True)
