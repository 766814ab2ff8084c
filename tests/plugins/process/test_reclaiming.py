"""What counts as the memory of processes that is pushed out."""

import itertools
import subprocess
import sys

from process.reclaiming import Tries, memory_of

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


def test_what_stays_is_pushed_some_times_each_after_twice_as_long_until_it_has_run() -> None:
    time = 0.0
    tries = Tries(lambda: time)
    tried_at = []
    while time < 24 * 3600:
        if tries.is_due("one"):
            tries.count("one")
            tried_at.append(time)
        time += 10.0
    assert [later - earlier for earlier, later in itertools.pairwise(tried_at)] == [
        60.0 * 2**count for count in range(7)
    ]
    assert tries.is_due("another")
    tries.forget("one")
    assert tries.is_due("one")
