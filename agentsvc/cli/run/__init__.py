"""`agentsvc run`: one conversation in the terminal, on a running server or on a private one."""

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
    "pass --model and set LLM_API_KEY,"
    " or start a server with `agentsvc serve` and use `agentsvc settings set`"
)


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that describe the conversation."""

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
@click.option("--branch", metavar="NAME", help="Branch to check out.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="PATH",
    help="Work on a copy of this directory; changed files are copied back at the end.",
)
@click.option(
    "--model", metavar="NAME", help="Language model; default: that of the settings, or LLM_MODEL."
)
@click.option("--base-url", metavar="URL", help="URL of the model's API, for a private server.")
@click.option("--title", metavar="TEXT", help="Title of the conversation.")
@click.option("--private", is_flag=True, help="Use a private server even if one runs.")
@click.option("--delete", is_flag=True, help="Delete the conversation and its sandbox at the end.")
@click.option("--yes", "agrees", is_flag=True, help="Confirm all questions and agent actions.")
@json_option
@server_options
def command(
    *, task: str, private: bool, delete: bool, server: ServerChoice, **options: Any
) -> None:
    """Let an agent do TASK, and show its events; `-` reads TASK from standard input.

    The conversation runs on the server of the options or the login, otherwise on the one that uses
    the data directory, otherwise on a private server that is removed afterwards. Ctrl-C interrupts
    the agent, a second Ctrl-C leaves. The exit code is 0 if the agent finished.
    """
    if options["repository"] and options["directory"]:
        raise click.UsageError("--repo and --dir cannot be used together")
    if options["directory"] and not options["directory"].is_dir():
        # click accepts special files such as `/dev/null`, which are neither file nor directory.
        raise click.UsageError(f"not a directory: {options['directory']}")
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
    """Return the model settings of a private server; raises CommandFailed without model or key."""
    model = wanted.model or environ.get("LLM_MODEL", "")
    vendor = model.partition("/")[0].upper().replace("-", "_")
    key = environ.get("LLM_API_KEY") or environ.get(f"{vendor}_API_KEY", "")
    base_url = wanted.base_url or environ.get("LLM_BASE_URL", "")
    if not model or not (key or base_url):
        missing = "a model" if not model else "a key"
        raise CommandFailed(f"no server runs, and a private one needs {missing}", _MODEL_HINT)
    given = {"llm_model": model, "llm_api_key": key, "llm_base_url": base_url}
    return {name: value for name, value in given.items() if value}


@contextmanager
def _private_server() -> Iterator[Api]:
    """Start a private server inside the context, and remove it afterwards."""
    private: Any = importlib.import_module("agentsvc.cli.private")
    private.check_installed(
        "a private server", "install the extra `agent`, or pass a server with --url and --key"
    )
    directory = Path(tempfile.mkdtemp(prefix="agentsvc-run-"))
    key = new_key("asvc_")
    server = private.PrivateServer(directory, key, port=0)
    try:
        click.echo("starting a private server …", err=True)
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
