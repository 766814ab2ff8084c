"""The commands `agentsvc attempts`: give one task to several agents, and compare the results."""

import time
from typing import Any, Final

import click

from agentsvc.cli.extension import (
    Api,
    ServerChoice,
    columns,
    confirm,
    example,
    find_conversation,
    find_named,
    found_options,
    get_api,
    json_option,
    json_text,
    moment,
    print_found,
    server_options,
    short,
    yes_option,
)

_BASE: Final = "/api/v1/attempts"
_POLL_SECONDS: Final = 1.0
_OPEN: Final = ("queued", "starting", "running")
_HEAD: Final = ("NO", "STATUS", "MODEL", "CHANGED", "TESTS", "TIME", "COST", "CONVERSATION")

type Record = dict[str, Any]


def _find(api: Api, text: str) -> Record:
    return find_named(api.call("GET", _BASE)["items"], "attempts", text)


_task_options: Final = found_options(_find)


@click.group(
    "attempts",
    epilog=example(
        'agentsvc attempts start "Make the tests pass" --repo owner/name --count 3 --test "make test"',
        "agentsvc attempts choose 7c9e66797425 2",
    ),
)
def command() -> None:
    """Give one task to several agents, compare the results, and continue with one.

    A task is identified by a prefix of its id.
    """


@command.command(
    epilog=example(
        'agentsvc attempts start "Make it faster" --conversation 7c9e66797425 --count 3 --wait',
        'agentsvc attempts start "Add tests" --repo owner/name --model quick --model good',
    )
)
@click.argument("task")
@click.option("--count", type=int, metavar="N", help="Number of attempts.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Model of an attempt.")
@click.option("--test", "test_command", metavar="COMMAND", help="Test command for each attempt.")
@click.option("--budget", type=float, metavar="DOLLARS", help="Cost limit of all together.")
@click.option("--repo", "repository", metavar="REPOSITORY", help="Repository of each conversation.")
@click.option("--branch", metavar="BRANCH", help="Branch of --repo.")
@click.option("--provider", metavar="HOST", help="Git host of --repo, such as `gitlab`.")
@click.option("--conversation", metavar="ID", help="Conversation to fork for each.")
@click.option(
    "--until",
    "up_to_event_id",
    metavar="EVENT",
    help="Last event of its history to include in forks.",
)
@click.option("--title", metavar="TITLE", help="Title of the conversations.")
@click.option("--wait", is_flag=True, help="Wait until all have ended.")
@json_option
@server_options
def start(
    *,
    task: str,
    conversation: str | None,
    wait: bool,
    as_json: bool,
    server: ServerChoice,
    **options: Any,
) -> None:
    """Give a task to several agents at once."""
    api = get_api(server)
    forked = find_conversation(api, conversation)["id"] if conversation else None
    body = {"message": task, "conversation_id": forked, **options}
    made = api.call("POST", _BASE, body=body)
    while wait and any(one["status"] in _OPEN for one in made["attempts"]):
        time.sleep(_POLL_SECONDS)
        made = api.call("GET", f"{_BASE}/{made['id']}")
    _print_task(made, as_json=as_json)


@command.command("list", epilog=example("agentsvc attempts list --json"))
@json_option
@server_options
def list_attempts(*, as_json: bool, server: ServerChoice) -> None:
    """List tasks, newest first."""
    found = get_api(server).call("GET", _BASE)["items"]
    rows = [
        (one["id"], short(one["name"]), _progress(one), _cost(one), moment(one["created_at"]))
        for one in found
    ]
    print_found(
        found, columns(("ID", "TASK", "OVER", "COST", "CREATED (UTC)"), rows), as_json=as_json
    )


@command.command(epilog=example("agentsvc attempts show 7c9e66797425"))
@json_option
@_task_options
def show(*, as_json: bool, api: Api, found: Record) -> None:
    """Show the results of a task's attempts."""
    _print_task(api.call("GET", f"{_BASE}/{found['id']}"), as_json=as_json)


@command.command(epilog=example("agentsvc attempts choose 7c9e66797425 2"))
@click.option("--keep-others", is_flag=True, help="Only stop the others.")
@yes_option
@json_option
@_task_options
@click.argument("attempt", type=int, metavar="NUMBER")
def choose(
    *, attempt: int, keep_others: bool, yes: bool, as_json: bool, api: Api, found: Record
) -> None:
    """Continue with one attempt, and delete the others."""
    if not keep_others:
        question = f"Delete all attempts of `{short(found['name'])}` but number {attempt}?"
        confirm(question, is_agreed=yes)
    body = {"attempt": attempt, "keep_others": keep_others}
    _print_task(api.call("POST", f"{_BASE}/{found['id']}/choose", body=body), as_json=as_json)


@command.command(epilog=example("agentsvc attempts delete 7c9e66797425"))
@yes_option
@_task_options
def delete(*, yes: bool, api: Api, found: Record) -> None:
    """Delete a task and all of its attempts except the chosen one."""
    confirm(f"Delete the attempts of `{short(found['name'])}` ({found['id']})?", is_agreed=yes)
    api.call("DELETE", f"{_BASE}/{found['id']}")


def _print_task(task: Record, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(task))
        return
    budget = f" of ${task['budget']:.2f}" if task["budget"] is not None else ""
    used_up = ", which is used up" if task["is_over_budget"] else ""
    click.echo(f"{task['id']}  {short(task['name'])}  {_cost(task)}{budget}{used_up}")
    rows = [_row(one) for one in task["attempts"]]
    for line in columns(_HEAD, rows):
        click.echo(line)
    for one in task["attempts"]:
        if one["detail"]:
            click.echo(f"{one['number']}: {short(one['detail'])}", err=True)


def _row(one: Record) -> tuple[str, ...]:
    changed, code = "-", one["test_exit_code"]
    if one["files"] is not None:
        changed = f"{one['files']} files +{one['additions']} -{one['deletions']}"
    tests = "-" if code is None else "passed" if code == 0 else f"failed ({code})"
    seconds = one["duration_seconds"]
    return (
        str(one["number"]),
        one["status"],
        one["model"] or "",
        changed,
        tests,
        "-" if seconds is None else f"{seconds:.0f} s",
        _cost(one),
        one["conversation_id"],
    )


def _cost(one: Record) -> str:
    return "-" if one["cost"] is None else f"${one['cost']:.4f}"


def _progress(task: Record) -> str:
    if task["chosen"] is not None:
        return f"chosen: {task['chosen']}"
    over = sum(one["status"] not in _OPEN for one in task["attempts"])
    return f"{over} of {len(task['attempts'])}"
