"""`agentsvc run`: one conversation in the terminal, on a server that runs or on one made for it."""

import asyncio
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from agentsvc.base import new_key
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import V1, Api
from agentsvc.cli.options import example, json_option
from agentsvc.cli.server import ServerChoice, find_api, server_options

_MODEL_HINT: Final = (
    "name it with --model and put its key into LLM_API_KEY,"
    " or start a server with `agentsvc serve` and use `agentsvc settings set`"
)


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say of the conversation."""

    task: str
    repository: str | None = None
    branch: str | None = None
    directory: Path | None = None
    model: str | None = None
    base_url: str | None = None
    title: str | None = None
    agrees: bool = False
    as_json: bool = False


@click.command(
    "run",
    epilog=example(
        'agentsvc run "Find out why the tests fail, and mend it" --dir .',
        'agentsvc run "Bring the README up to date" --repo https://github.com/me/tool --json',
    ),
)
@click.argument("task", metavar="TASK")
@click.option(
    "--repo", "repository", metavar="URL", help="Repository to clone first: its URL, or OWNER/NAME."
)
@click.option("--branch", metavar="NAME", help="Branch to begin with.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="PATH",
    help="Work on a copy of this directory; what was changed is brought back at the end.",
)
@click.option(
    "--model", metavar="NAME", help="Language model; otherwise LLM_MODEL or the settings."
)
@click.option("--base-url", metavar="URL", help="Where the model is, for a private server.")
@click.option("--title", metavar="TEXT", help="Title of the conversation.")
@click.option("--private", is_flag=True, help="Use a server of its own even though one runs.")
@click.option("--delete", is_flag=True, help="Delete the conversation and its sandbox at the end.")
@click.option("--yes", "agrees", is_flag=True, help="Agree to whatever is asked.")
@json_option
@server_options
def command(
    *, task: str, private: bool, delete: bool, server: ServerChoice, **options: Any
) -> None:
    """Let an agent do TASK, and show what it does; `-` reads it from standard input.

    It runs on the server that is named, else on the one beside this command, else on one that is
    made for it and removed after it. Ctrl-C interrupts the agent, a second one leaves. The exit code
    is 0 if the agent finished.
    """
    if options["repository"] and options["directory"]:
        raise click.UsageError("a repository and a directory cannot be worked on at a time")
    if options["directory"] and not options["directory"].is_dir():
        # Of what is no file either, click takes all, such as `/dev/null`.
        raise click.UsageError(f"it is no directory: {options['directory']}")
    text = sys.stdin.read() if task == "-" else task
    if not text.strip():
        raise click.UsageError("the task is empty")
    wanted = RunOptions(task=text, **options)
    api = None if private else find_api(server)
    conversations = importlib.import_module("agentsvc.cli.run.conversation")
    if api is not None and wanted.base_url:
        hint = "add --private, or run `agentsvc settings set llm_base_url URL`"
        raise CommandFailed(f"--base-url is for a private server, and {api.url} runs", hint)
    if api is not None:
        conversations.run_task(api, wanted, is_removed=delete)
        return
    llm = model_of(wanted, os.environ)
    with _private_server() as made:
        made.call("POST", f"{V1}/settings", body=llm)
        conversations.run_task(made, msgspec.structs.replace(wanted, model=None), is_removed=False)


def model_of(wanted: RunOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the model for a private server; raises CommandFailed without one."""
    model = wanted.model or environ.get("LLM_MODEL", "")
    vendor = model.partition("/")[0].upper().replace("-", "_")
    key = environ.get("LLM_API_KEY") or environ.get(f"{vendor}_API_KEY", "")
    base_url = wanted.base_url or environ.get("LLM_BASE_URL", "")
    if not model or not (key or base_url):
        missing = "a model" if not model else "a key"
        raise CommandFailed(f"no server runs, and one for this task needs {missing}", _MODEL_HINT)
    given = {"llm_model": model, "llm_api_key": key, "llm_base_url": base_url}
    return {name: value for name, value in given.items() if value}


@contextmanager
def _private_server() -> Iterator[Api]:
    """Give a server of its own; nothing of it is left afterwards."""
    private: Any = importlib.import_module("agentsvc.cli.private")
    private.check_installed(
        "a server for this task", "install the extra `agent`, or name a server with --url and --key"
    )
    directory = Path(tempfile.mkdtemp(prefix="agentsvc-run-"))
    key = new_key("asvc_")
    server = private.PrivateServer(directory, key, port=0)
    try:
        click.echo("starting a server for this task …", err=True)
        server.start(asyncio.run(private.choose_isolation(directory)))
        try:
            url = server.read_url()
        except CommandFailed:
            click.echo(server.last_log_lines(), err=True)
            raise
        yield Api(url, key)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
