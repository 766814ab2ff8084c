"""The commands `agentsvc environments`: manage prepared environments of a server."""

import time
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
    server_options,
    short,
    yes_option,
)

_BASE: Final = "/api/v1/environments"
_POLL_SECONDS: Final = 1.0

type Record = dict[str, Any]


def _find(api: Api, text: str) -> Record:
    return find_named(api.call("GET", _BASE)["items"], "environments", text)


_environment_options: Final = found_options(_find, metavar="NAME")


def _to_variables(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    variables = {}
    for text in given:
        name, has_value, value = text.partition("=")
        if not has_value:
            raise click.BadParameter(f"`{short(text)}` is not NAME=VALUE")
        variables[name] = value
    return variables


@click.group(
    "environments",
    epilog=example(
        'agentsvc environments create --name site --repository owner/name --setup "npm ci"',
        "agentsvc environments show site",
    ),
)
def command() -> None:
    """Run the set-up of a repository once, and start conversations with a copy.

    An environment is identified by its name or by a prefix of its id.
    """


@command.command("list", epilog=example("agentsvc environments list --json"))
@json_option
@server_options
def list_environments(*, as_json: bool, server: ServerChoice) -> None:
    """List environments, newest first."""
    found = get_api(server).call("GET", _BASE)["items"]
    rows = [
        (one["id"], short(one["name"]), one["repository"] or "", one["status"], _prepared(one))
        for one in found
    ]
    print_found(
        found,
        columns(("ID", "NAME", "REPOSITORY", "STATUS", "PREPARED (UTC)"), rows),
        as_json=as_json,
    )


@command.command(epilog=example("agentsvc environments show site"))
@json_option
@_environment_options
def show(*, as_json: bool, api: Api, found: Record) -> None:
    """Show an environment, and the output of its set-up script."""
    whole = api.call("GET", f"{_BASE}/{found['id']}")
    print_found(whole, fields(whole), as_json=as_json)


@command.command(
    epilog=example(
        'agentsvc environments create --name site --repository owner/name --setup "npm ci"',
        "agentsvc environments create --name tools --setup-file setup.sh --wait",
        'agentsvc environments create --name site --repository owner/name --variable CI=1 --watched "*.lock"',
    )
)
@click.option("--name", metavar="NAME", required=True, help="Its name.")
@click.option("--repository", metavar="REPOSITORY", help="Its repository.")
@click.option("--provider", metavar="HOST", help="Git host of --repository, such as `gitlab`.")
@click.option(
    "--spec", "sandbox_spec_id", metavar="ID", help="Sandbox spec to prepare and use it with."
)
@click.option("--image", metavar="IMAGE", help="Image of the sandboxes, if they have images.")
@click.option(
    "--devcontainer",
    metavar="PATH",
    default="auto",
    help="The repository's `devcontainer.json`; `auto` finds it, `none` takes none.",
)
@click.option(
    "--setup",
    "setup_script",
    metavar="COMMANDS",
    default="",
    help="Bash commands that prepare it.",
)
@click.option(
    "--setup-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the bash commands that prepare it.",
)
@click.option(
    "--maintenance",
    "maintenance_script",
    metavar="COMMANDS",
    default="",
    help="Bash commands to run at the start of each conversation.",
)
@click.option(
    "--watched",
    multiple=True,
    metavar="FILE",
    help="File whose change makes the environment stale, as a pattern of git; default: lock files.",
)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_to_variables,
    help="Environment variable for both scripts.",
)
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Secret for the set-up.")
@click.option("--shared", is_flag=True, help="Let others use it; for administrators only.")
@click.option("--wait", is_flag=True, help="Wait until it is prepared.")
@json_option
@server_options
def create(
    *,
    setup_file: Path | None,
    watched: tuple[str, ...],
    wait: bool,
    as_json: bool,
    server: ServerChoice,
    **options: Any,
) -> None:
    """Prepare an environment, in the background.

    Without --setup, `.agentsvc/setup.sh` or `.openhands/setup.sh` of the repository runs, and then
    the commands of its `devcontainer.json`.
    """
    api = get_api(server)
    if setup_file:
        options["setup_script"] = read_given(setup_file)
    body = {**options, "watched": watched or None}
    made = api.call("POST", _BASE, body=body)
    _print_result(api, made, wait=wait, as_json=as_json)


@command.command(epilog=example("agentsvc environments prepare site --wait"))
@click.option("--wait", is_flag=True, help="Wait until it is prepared.")
@json_option
@_environment_options
def prepare(*, wait: bool, as_json: bool, api: Api, found: Record) -> None:
    """Prepare an environment again."""
    begun = api.call("POST", f"{_BASE}/{found['id']}/prepare")
    _print_result(api, begun, wait=wait, as_json=as_json)


@command.command(epilog=example("agentsvc environments delete site"))
@yes_option
@_environment_options
def delete(*, yes: bool, api: Api, found: Record) -> None:
    """Delete an environment and its files; conversations that started with them stay."""
    confirm(f"Delete `{short(found['name'])}` ({found['id']})?", is_agreed=yes)
    api.call("DELETE", f"{_BASE}/{found['id']}")


def _print_result(api: Api, one: Record, *, wait: bool, as_json: bool) -> None:
    while wait and one["status"] not in ("ready", "failed"):
        time.sleep(_POLL_SECONDS)
        one = api.call("GET", f"{_BASE}/{one['id']}")
    if wait and one["status"] == "failed":
        raise CommandFailed(
            f"the environment `{one['name']}` could not be prepared: {one['detail']}",
            f"run `agentsvc environments show {one['id']}` to see what its set-up wrote",
        )
    click.echo(json_text(one) if as_json else one["id"])


def _prepared(one: Record) -> str:
    return moment(one["prepared_at"]) if one["is_prepared"] else "never"
