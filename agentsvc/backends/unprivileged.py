"""Becomes a program without rights, for what has been put into namespaces of its own.

Run as a program with the standard library alone, before an interpreter is started that looks at
what is installed: USER DESCRIPTOR ARGUMENTS..., where the program is what is open as that number. For
root it becomes that user; 0 is for a server that is not root, whose user it stays.
"""

import os
import sys

from agentsvc.backends.joining import become_nobody
from agentsvc.backends.landlock import leave_processes

_FAILED = 1


def main() -> None:
    """Give up all rights and become the program."""
    user, program, *arguments = sys.argv[1:]
    try:
        if int(user):
            become_nobody(int(user))
        else:
            leave_processes()
        os.execve(int(program), arguments, os.environ)  # noqa: S606  # what it is for
    except OSError as exc:
        sys.stderr.write(f"{exc.strerror}\n")
        sys.exit(_FAILED)
