"""Removes secrets from the visible environment of a server.

The initial environment of a process stays readable in `/proc/PID/environ`, whatever it does to its
variables later. So a server that finds secrets in it re-executes itself without them, in the same
process, and reads them from an in-memory file that only this process has.

Imported before any other module, so it imports the standard library only.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Final

HANDED_OVER_VARIABLE: Final = "AGENTSVC_HANDED_OVER"
"""The variable with the descriptor of the in-memory file, set for the second start."""

_NAMED: Final = re.compile(r"AGENTSVC_(.*_)?(KEY|PASSWORD|SECRET|TOKEN)S?", re.IGNORECASE)
_WITHIN: Final = re.compile(r'(key|password|secret|token)s?("\s*:|\s*=)', re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable of ours is named like a secret, or is a table with such a key."""
    if not name.startswith("AGENTSVC_") or not value:
        return False
    return bool(_NAMED.fullmatch(name) or _WITHIN.search(value))


def take_secrets(environ: MutableMapping[str, str]) -> Mapping[str, str]:
    """Return the variables with secrets; if there are any, re-execute the program first."""
    if descriptor := environ.pop(HANDED_OVER_VARIABLE, ""):
        with open(int(descriptor), encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123  # a descriptor has no path
            taken: dict[str, str] = json.load(file)
        return taken
    if found := {name: value for name, value in environ.items() if is_secret(name, value)}:
        _start_again(environ, found)
    return {}


def _start_again(environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    # The descriptor is inheritable (flags 0), so that it survives `execve`.
    descriptor = os.memfd_create("agentsvc", 0)
    os.write(descriptor, json.dumps(secrets).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    kept = {name: value for name, value in environ.items() if name not in secrets}
    kept[HANDED_OVER_VARIABLE] = str(descriptor)
    os.execve(sys.executable, sys.orig_argv, kept)  # noqa: S606  # our own program, with its own arguments
