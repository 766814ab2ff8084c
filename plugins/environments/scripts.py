"""Scripts of environments. Pure."""

from collections.abc import Iterable
from shlex import quote
from typing import Final

from .devcontainer import FOLDER
from .model import Container, Definition

_LONG_LINE: Final = 12
_REPOSITORYS: Final = """
for file in .agentsvc/setup.sh .openhands/setup.sh; do
  if [ -f "$file" ]; then . "$file"; exit $?; fi
done
"""


def setup_of(
    definition: Definition, container: Container, secrets: dict[str, str] | None = None
) -> str:
    """Return what bash runs to prepare an environment."""
    script = definition.setup_script or _REPOSITORYS
    if container.set_up:
        # Whatever ends the one leaves the other to be run.
        script = f"bash -c {quote(script)} || exit $?\n{container.set_up}"
    return _with_variables(script, definition.variables | (secrets or {}), container)


def maintenance_of(definition: Definition, container: Container) -> str:
    """Return what bash runs at each start; empty for nothing."""
    script = definition.maintenance_script
    if container.each_start:
        own = f"bash -c {quote(script)} || exit $?\n" if script else ""
        script = f"{own}{container.each_start}"
    return _with_variables(script, definition.variables, container) if script else ""


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return a text without secrets, nor longer lines of one, such as a key that was shown in parts."""
    for value in secrets:
        lines = [line for line in value.splitlines() if len(line) >= _LONG_LINE]
        for one in (value, value.strip(), *lines):
            text = text.replace(one, "***") if one else text
    return text


def _with_variables(script: str, variables: dict[str, str], container: Container) -> str:
    lines = [f"export {name}={quote(value)}" for name, value in variables.items()]
    return "\n".join((f'export {FOLDER}="$PWD"', container.exports, *lines, script))


def after_setup(container: Container, folder: str) -> str:
    """Return what notes that the set-up was done, and has the agent's shells have the variables."""
    done = "if [ -d .git ]; then : >.git/agentsvc-setup-done; fi"
    if not container.exports:
        return done
    lines = f"export {FOLDER}={quote(folder)}\n{container.exports}"
    return f"{done}\nprintf '%s\\n' {quote(lines)} >>~/.bashrc"
