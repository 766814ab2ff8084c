"""The bash scripts of environments. Pure."""

from collections.abc import Iterable
from shlex import quote
from typing import Final

from .devcontainer import FOLDER
from .model import Container, Definition

_LONG_LINE: Final = 12
_FROM_REPOSITORY: Final = """
for file in .agentsvc/setup.sh .openhands/setup.sh; do
  if [ -f "$file" ]; then . "$file"; exit $?; fi
done
"""


def setup_of(
    definition: Definition, container: Container, secrets: dict[str, str] | None = None
) -> str:
    """Return the bash script that prepares an environment."""
    script = definition.setup_script or _FROM_REPOSITORY
    if container.set_up:
        # In a shell of its own, so that an `exit` in the first does not skip the second.
        script = f"bash -c {quote(script)} || exit $?\n{container.set_up}"
    return _with_variables(script, definition.variables | (secrets or {}), container)


def maintenance_of(definition: Definition, container: Container) -> str:
    """Return the bash script for each start; empty for none."""
    script = definition.maintenance_script
    if container.each_start:
        own = f"bash -c {quote(script)} || exit $?\n" if script else ""
        script = f"{own}{container.each_start}"
    return _with_variables(script, definition.variables, container) if script else ""


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Redact secrets in a text, and long lines of them, such as a key that was printed in parts."""
    for value in secrets:
        lines = [line for line in value.splitlines() if len(line) >= _LONG_LINE]
        for one in (value, value.strip(), *lines):
            text = text.replace(one, "***") if one else text
    return text


def _with_variables(script: str, variables: dict[str, str], container: Container) -> str:
    lines = [f"export {name}={quote(value)}" for name, value in variables.items()]
    return "\n".join((f'export {FOLDER}="$PWD"', container.exports, *lines, script))


def after_setup(container: Container, folder: str) -> str:
    """Return the script that marks the set-up as done, and exports variables to the agent."""
    done = "if [ -d .git ]; then : >.git/agentsvc-setup-done; fi"
    if not container.exports:
        return done
    lines = f"export {FOLDER}={quote(folder)}\n{container.exports}"
    return f"{done}\nprintf '%s\\n' {quote(lines)} >>~/.bashrc"
