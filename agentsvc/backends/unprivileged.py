"""Becomes a program as a user that has no rights, for what root has put into namespaces of its own.

Run as a program with the standard library alone, before an interpreter is started that looks at
what is installed: USER DESCRIPTOR ARGUMENTS..., where the program is what is open as that number.
"""

import os
import sys

from agentsvc.backends.joining import become_nobody

_FAILED = 1


def main() -> None:
    """Give up all rights and become the program."""
    user, program, *arguments = sys.argv[1:]
    try:
        become_nobody(int(user))
        os.execve(int(program), arguments, os.environ)  # noqa: S606  # what it is for
    except OSError as exc:
        sys.stderr.write(f"{exc.strerror}\n")
        sys.exit(_FAILED)
