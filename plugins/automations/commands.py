"""The commands `agentsvc automations`: manage and run automations of a server."""

import json
import tomllib
from collections.abc import Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, Final

import click

from agentsvc.cli.extension import (
    Api,
    CommandFailed,
    ServerChoice,
    columns,
    confirm,
    example,
    fields,
    find_named,
    found_options,
    get_api,
    json_option,
    json_text,
    moment,
    print_found,
    read_given,
    secret_output,
    server_options,
    short,
    yes_option,
)

_BASE: Final = "/api/automation/v1"
_PAGE: Final = 100
_TEMPLATES: Final = Path(__file__).parent / "templates"

_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)

type Record = dict[str, Any]


def _all(api: Api) -> Iterator[Record]:
    offset, total = 0, 1
    while offset < total:
        page = api.call("GET", _BASE, query={"limit": _PAGE, "offset": offset})
        yield from page["automations"]
        offset, total = offset + _PAGE, page["total"]


def _find(api: Api, text: str) -> Record:
    return find_named(list(_all(api)), "automations", text)


_automation_options: Final = found_options(_find, metavar="NAME")


@click.group(
    "automations",
    epilog=example(
        'agentsvc automations create --name nightly --cron "0 3 * * *" --prompt "Run the tests"',
        "agentsvc automations runs nightly",
    ),
)
def command() -> None:
    """Run agents on a schedule, by webhooks, or by hand.

    An automation is identified by its name or by a prefix of its id.
    """


@command.command("list", epilog=example("agentsvc automations list --json"))
@json_option
@server_options
def list_automations(*, as_json: bool, server: ServerChoice) -> None:
    """List automations, newest first."""
    found = list(_all(get_api(server)))
    rows = [
        (one["id"], short(one["name"]), _trigger(one), moment(one["next_run_at"]), _state(one))
        for one in found
    ]
    print_found(
        found, columns(("ID", "NAME", "TRIGGER", "NEXT (UTC)", "STATE"), rows), as_json=as_json
    )


@command.command(epilog=example("agentsvc automations show nightly"))
@json_option
@_automation_options
def show(*, as_json: bool, api: Api, found: Record) -> None:
    """Show an automation."""
    del api
    print_found(found, fields({**found, "trigger": _trigger(found)}), as_json=as_json)


@command.command(
    epilog=example(
        'agentsvc automations create --name nightly --cron "0 3 * * 1-5" --timezone Europe/Berlin'
        ' --repository owner/name --prompt "Run the tests"',
        "agentsvc automations create dependencies.toml --repository owner/name",
    )
)
@click.argument("file", metavar="[FILE]", required=False, type=_FILE)
@click.option("--name", metavar="NAME", help="Name of the automation.")
@click.option("--prompt", metavar="TEXT", help="Prompt for the agent.")
@click.option("--command", metavar="TEXT", help="Shell command to run instead of an agent.")
@click.option("--cron", metavar="SCHEDULE", help="Run on a cron schedule.")
@click.option("--timezone", metavar="ZONE", help="Time zone of --cron; default UTC.")
@click.option("--at", metavar="TIME", help="Run once, at a time in ISO 8601.")
@click.option("--webhook", is_flag=True, help="Run for each signed delivery of a webhook.")
@click.option("--repository", metavar="REPOSITORY", help="Repository to clone.")
@click.option("--branch", metavar="BRANCH", help="Branch of --repository.")
@click.option("--provider", metavar="HOST", help="Git host of --repository, such as `gitlab`.")
@click.option("--model", metavar="PROFILE", help="Saved language model to use.")
@click.option("--disabled", is_flag=True, help="Create it disabled.")
@click.option(
    "--output",
    metavar="FILE",
    help="New file for the webhook secret, or `-` for standard output. By default it is shown if that is"
    " a terminal, and otherwise written to a file in this directory whose path is printed. With `--json`"
    " it is part of the output.",
)
@json_option
@server_options
def create(
    *,
    file: Path | None,
    output: str | None,
    as_json: bool,
    server: ServerChoice,
    **options: Any,
) -> None:
    """Create an automation from options, a TOML file with the fields of the API, or both.

    Without a trigger it runs only by hand. The secret of a webhook cannot be shown again.
    """
    body = _body(_read(file) if file else {}, options)
    has_secret = _table(body["trigger"]).get("type") in ("webhook", "git")
    if as_json and output and has_secret:
        raise click.UsageError("--json prints the secret itself, so it excludes --output")
    api = get_api(server)
    if not has_secret:
        made = api.call("POST", _BASE, body=body)
        text = json_text(made) if as_json else f"automation {made['id']} is created"
        click.echo(text, err=not as_json)
        return
    with secret_output("-" if as_json else output, Path(), "automation-secret") as shown:
        made = api.call("POST", _BASE, body=body)
        secret = json_text(made) if as_json else made["secret"]
        what = f"automation {made['id']} is created, and takes deliveries at {api.url}"
        shown.tell(f"{what}{made['events_path']}; the secret that signs them", secret)


@command.command(epilog=example("agentsvc automations run nightly"))
@json_option
@_automation_options
def run(*, as_json: bool, api: Api, found: Record) -> None:
    """Run an automation now, even if it is disabled."""
    made = api.call("POST", f"{_BASE}/{found['id']}/dispatch")
    if as_json:
        click.echo(json_text(made))
        return
    click.echo(f"run {made['id']} is scheduled", err=True)


@command.command(epilog=example("agentsvc automations enable nightly"))
@_automation_options
def enable(*, api: Api, found: Record) -> None:
    """Enable an automation; missed runs are not made up for."""
    _switch(api, found, is_enabled=True)


@command.command(epilog=example("agentsvc automations disable nightly"))
@_automation_options
def disable(*, api: Api, found: Record) -> None:
    """Disable an automation and cancel its pending runs."""
    _switch(api, found, is_enabled=False)


@command.command(epilog=example("agentsvc automations delete nightly --yes"))
@yes_option
@_automation_options
def delete(*, yes: bool, api: Api, found: Record) -> None:
    """Delete an automation and its runs; their conversations stay."""
    confirm(f"Delete `{short(found['name'])}` ({found['id']})?", is_agreed=yes)
    api.call("DELETE", f"{_BASE}/{found['id']}")
    click.echo(f"automation {found['id']} is deleted", err=True)


@command.command(epilog=example("agentsvc automations runs nightly --json"))
@click.option("--limit", default=50, type=click.IntRange(1, _PAGE), help="Page size; default 50.")
@json_option
@_automation_options
def runs(*, limit: int, as_json: bool, api: Api, found: Record) -> None:
    """List the runs of an automation, newest first."""
    known = api.call("GET", f"{_BASE}/{found['id']}/runs", query={"limit": limit})["runs"]
    rows = [
        (
            one["id"],
            moment(one["due_at"]),
            one["status"].lower(),
            "" if one["cost"] is None else f"${one['cost']:.2f}",
            "" if one["duration_seconds"] is None else f"{one['duration_seconds']:.0f} s",
            one["conversation_id"] or "",
            short(one["error_detail"] or one["result"]),
        )
        for one in known
    ]
    head = ("ID", "DUE (UTC)", "STATE", "COST", "TOOK", "CONVERSATION", "RESULT")
    print_found(known, columns(head, rows), as_json=as_json)


@command.command(epilog=example("agentsvc automations template dependencies >dependencies.toml"))
@click.argument("name", metavar="[NAME]", required=False)
def template(name: str | None) -> None:
    """Print a template to copy and change, or the names of all templates."""
    files = {file.stem: file for file in sorted(_TEMPLATES.glob("*.toml"))}
    if name is None:
        click.echo("\n".join(files))
    elif name in files:
        click.echo(files[name].read_text("utf-8"), nl=False)
    else:
        raise CommandFailed(
            f"there is no template `{name}`", "run `agentsvc automations template` to see them"
        )


@command.command(
    "github-app",
    epilog=example(
        "agentsvc automations github-app 123456 --private-key app.pem --hook-secret hook.txt"
    ),
)
@click.argument("app_id", metavar="APP_ID")
@click.option(
    "--private-key", required=True, metavar="FILE", type=_FILE, help="Private key, in PEM."
)
@click.option("--hook-secret", metavar="FILE", type=_FILE, help="Secret of the App's webhook.")
@click.option("--host", metavar="HOST", help="GitHub Enterprise host; default github.com.")
@server_options
def github_app(
    app_id: str,
    *,
    private_key: Path,
    hook_secret: Path | None,
    host: str | None,
    server: ServerChoice,
) -> None:
    """Let your automations act as a GitHub App, and print the URL for its webhook.

    The key stays in the server. To replace it, run the command with another key.
    """
    api = get_api(server)
    key, secret = (read_given(one).strip() if one else "" for one in (private_key, hook_secret))
    given = {"private_key": key, "webhook_secret": secret, "host": host}
    made = api.call("PUT", f"{_BASE}/github-app", body={"app_id": app_id, **given})
    click.echo(f"automations act as {made['slug']}[bot]", err=True)
    click.echo(f"{api.url}{made['events_path']}")


def _read(file: Path) -> Record:
    try:
        known = tomllib.loads(read_given(file, errors="strict"))
        read: Record = json.loads(json.dumps(known, default=_written))
    except (OSError, ValueError) as exc:
        raise CommandFailed(f"the file cannot be read as TOML: {exc}: {file}") from exc
    return read


def _written(moment: date | time) -> str:
    """Return a TOML date or time in the API's format, ISO 8601."""
    return moment.isoformat().replace("+00:00", "Z")


def _table(value: Any) -> Record:
    """Return a value that should be a table, or an empty table; the server rejects other values."""
    return value if isinstance(value, dict) else {}


def _body(body: Record, given: Record) -> Record:
    """Return the request body: the fields of the file, overridden by the options."""
    cron, at, webhook, repository = (
        given[name] for name in ("cron", "at", "webhook", "repository")
    )
    if sum((cron is not None, at is not None, webhook)) > 1:
        raise click.UsageError("an automation has one trigger: --cron, --at, or --webhook")
    has_place = given["branch"] or given["provider"]
    if (given["timezone"] and not cron) or (has_place and not repository):
        text = "--timezone requires --cron; --branch and --provider require --repository"
        raise click.UsageError(text)
    trigger: Record = body.get("trigger") or {"type": "manual"}
    if cron is not None:
        trigger = {"type": "cron", "schedule": cron, "timezone": given["timezone"] or "UTC"}
    elif at is not None:
        trigger = {"type": "once", "at": at}
    elif webhook:
        trigger = {"type": "webhook"}
    texts = {name: given[name] for name in ("name", "prompt", "command", "model") if given[name]}
    whole = {**body, "trigger": trigger, **texts}
    if repository:
        repos = body.get("repos")
        known = _table(repos[0] if isinstance(repos, list) and repos else {}).get("provider")
        place = {"url": repository, "ref": given["branch"], "provider": given["provider"] or known}
        whole["repos"] = [{name: text for name, text in place.items() if text}]
    if given["disabled"]:
        whole["enabled"] = False
    needed = ("name",) if "command" in whole else ("name", "prompt")
    if missing := [f"--{key}" for key in needed if key not in whole]:
        raise click.UsageError(f"missing: {' and '.join(missing)}")
    return whole


def _switch(api: Api, found: Record, *, is_enabled: bool) -> None:
    api.call("PATCH", f"{_BASE}/{found['id']}", body={"enabled": is_enabled})
    said = "enabled" if is_enabled else "disabled"
    click.echo(f"automation {found['id']} is {said}", err=True)


def _trigger(one: Record) -> str:
    trigger = one["trigger"]
    more = {"cron": "schedule", "once": "at"}.get(trigger["type"])
    return f"{trigger['type']} {trigger[more]}" if more else str(trigger["type"])


def _state(one: Record) -> str:
    if one["enabled"]:
        return "active"
    return f"disabled: {short(one['disabled_reason'])}" if one["disabled_reason"] else "disabled"
