"""What counts as the memory of processes that is pushed out."""

import subprocess
import sys

from process.reclaiming import memory_of

_MEBIBYTE = 2**20
_FORKED = """
import os, sys
ballast = os.urandom(64 << 20)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_what_is_shared_with_the_process_it_was_forked_from_is_not_its_own() -> None:
    command = [sys.executable, "-c", _FORKED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert memory_of(iter([int(parent.stdout.readline())])).kept_bytes < 16 * _MEBIBYTE
