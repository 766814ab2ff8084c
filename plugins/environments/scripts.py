"""Scripts of environments. Pure."""

from collections.abc import Mapping
from shlex import quote


def with_variables(script: str, variables: Mapping[str, str]) -> str:
    """Return a script with environment variables; an empty one stays empty."""
    if not script:
        return ""
    lines = [f"export {name}={quote(value)}" for name, value in variables.items()]
    return "\n".join((*lines, script))
