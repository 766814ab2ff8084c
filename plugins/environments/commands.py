"""`agentsvc environments`: prepares environments that conversations begin with."""

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


_of_environment: Final = found_options(_find, metavar="NAME")


def _to_variables(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    variables = {}
    for text in given:
        name, is_one, value = text.partition("=")
        if not is_one:
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
    """Do the set-up of a repository once, and begin conversations with a copy.

    An environment is named by its name, or by the beginning of its id.
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
@_of_environment
def show(*, as_json: bool, api: Api, found: Record) -> None:
    """Show an environment, and what its set-up script wrote."""
    whole = api.call("GET", f"{_BASE}/{found['id']}")
    print_found(whole, fields(whole), as_json=as_json)


@command.command(
    epilog=example(
        'agentsvc environments create --name site --repository owner/name --setup "npm ci"',
        "agentsvc environments create --name tools --setup-file setup.sh --wait",
        'agentsvc environments create --name site --repository owner/name --variable CI=1 --watched "*.lock"',
    )
)
@click.option("--name", metavar="NAME", required=True, help="What it is called.")
@click.option("--repository", metavar="REPOSITORY", help="Repository it is for.")
@click.option("--provider", metavar="HOST", help="Git host of --repository, such as `gitlab`.")
@click.option(
    "--spec", "sandbox_spec_id", metavar="ID", help="Sandbox spec to prepare and use it with."
)
@click.option("--image", metavar="IMAGE", help="Image of the sandboxes, where there are images.")
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
    help="What bash runs to prepare it.",
)
@click.option(
    "--setup-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with what bash runs to prepare it.",
)
@click.option(
    "--maintenance",
    "maintenance_script",
    metavar="COMMANDS",
    default="",
    help="What bash runs at the start of each conversation.",
)
@click.option(
    "--watched",
    multiple=True,
    metavar="FILE",
    help="File of the repository whose change makes it stale, by patterns of git; lock files unless set.",
)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_to_variables,
    help="Environment variable of both scripts.",
)
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Secret for the set-up.")
@click.option("--shared", is_flag=True, help="Let others use it, as an administrator.")
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

    Without --setup, `.agentsvc/setup.sh` or `.openhands/setup.sh` of the repository is run, and then
    what its `devcontainer.json` says.
    """
    api = get_api(server)
    if setup_file:
        options["setup_script"] = read_given(setup_file)
    body = {**options, "watched": watched or None}
    made = api.call("POST", _BASE, body=body)
    _tell(api, made, wait=wait, as_json=as_json)


@command.command(epilog=example("agentsvc environments prepare site --wait"))
@click.option("--wait", is_flag=True, help="Wait until it is prepared.")
@json_option
@_of_environment
def prepare(*, wait: bool, as_json: bool, api: Api, found: Record) -> None:
    """Prepare an environment anew."""
    begun = api.call("POST", f"{_BASE}/{found['id']}/prepare")
    _tell(api, begun, wait=wait, as_json=as_json)


@command.command(epilog=example("agentsvc environments delete site"))
@yes_option
@_of_environment
def delete(*, yes: bool, api: Api, found: Record) -> None:
    """Delete an environment and its files; conversations that began with them stay."""
    confirm(f"Delete `{short(found['name'])}` ({found['id']})?", is_agreed=yes)
    api.call("DELETE", f"{_BASE}/{found['id']}")


def _tell(api: Api, one: Record, *, wait: bool, as_json: bool) -> None:
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
