"""`agentsvc doctor`: checks the requirements of a server on this machine, and suggests fixes."""

import os
from collections.abc import Callable, Iterator
from typing import Final

import click
import msgspec

from agentsvc.base import hint_against
from agentsvc.cli import CommandFailed
from agentsvc.cli.doctor import environment as environment
from agentsvc.cli.doctor import machine
from agentsvc.cli.doctor.finding import Finding, Severity, bad
from agentsvc.cli.options import ConfigOptions, data_dir_of, example, json_option, where_options
from agentsvc.cli.text import json_text
from agentsvc.config import Config, DataDirectory

type Check = Callable[[Config, DataDirectory], Iterator[Finding]]

_CHECKS: Final[tuple[Check, ...]] = (
    machine.check_python,
    machine.check_extras,
    machine.check_isolation,
    machine.check_cgroups,
    machine.check_engine,
    machine.check_port,
    machine.check_disk,
    machine.check_permissions,
    environment.check_proxies,
    environment.check_authorities,
    environment.check_models,
)


@click.command("doctor", epilog=example("agentsvc doctor", "agentsvc doctor --json | jq '.[]'"))
@json_option
@where_options
def command(*, as_json: bool, where: ConfigOptions) -> None:
    """Check this machine for problems, and print the command that fixes each of them.

    Tests whether the models in the settings of all users, and LLM_BASE_URL, can be reached; sends no
    prompts. The exit code is 1 if there is an error.
    """
    loaded = where.load()
    data_directory = data_dir_of(loaded)
    found: list[Finding] = []
    for check in _CHECKS:
        for finding in _findings(check, loaded.config, data_directory):
            found.append(finding)
            if not as_json:
                _show(finding)
    if as_json:
        click.echo(json_text(msgspec.to_builtins(found)))
    problems = sum(finding.grade is Severity.BAD for finding in found)
    if problems:
        raise CommandFailed(f"problems found: {problems}", "the fix of each is listed above")


def _findings(check: Check, config: Config, data_directory: DataDirectory) -> Iterator[Finding]:
    """Yield the findings of a check; an OSError becomes a finding itself."""
    try:
        yield from check(config, data_directory)
    except OSError as exc:
        text = f"the check failed: {exc.strerror or exc}: {exc.filename or data_directory.path}"
        yield bad(check.__name__.removeprefix("check_"), text, hint_against(exc))


def _show(finding: Finding) -> None:
    colour = {Severity.FINE: "green", Severity.NOTE: "yellow", Severity.BAD: "red"}[finding.grade]
    has_colour = not os.environ.get("NO_COLOR")
    grade = click.style(f"{finding.grade:<5}", fg=colour) if has_colour else f"{finding.grade:<5}"
    click.echo(f"{grade} {finding.name}: {finding.text}")
    if finding.remedy:
        click.echo(f"      fix: {finding.remedy}")
