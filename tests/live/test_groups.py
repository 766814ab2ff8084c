"""Control groups of version 2, in a kernel of their own: detected, divided, and enforced."""

import shutil
from pathlib import Path

import pytest

from tests.live.conftest import unavailable
from tests.live.uml import PROGRAM, run_inside

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

ALL = ["cpus", "memory_bytes", "pids"]
HELD = [-9, 1, 9, True]
"""A hog killed, one kill counted, 10 processes with the one that makes them, time held back."""


async def test_groups_of_version_2_hold_what_is_in_them(tmp_path: Path) -> None:
    if shutil.which(PROGRAM) is None:
        unavailable(f"`{PROGRAM}` is missing: install the package `user-mode-linux`")
    found = await run_inside(tmp_path, "tests.live.groups_inside")
    assert found["top"] == ["/mnt/groups", ALL, *HELD]
    # A service's own group is divided: the server moves into a leaf, and finds that again.
    assert found["unit"] == ["/mnt/groups/unit", ALL, True]
    assert found["mine"] == ["/mnt/groups/mine", ALL, True, *HELD]
    # What belongs to whoever manages the machine is left alone, as root and as anybody else.
    assert found["none"] == found["other"] == []
    # A whole sandbox: what ended it is told apart, and its groups go with it.
    reason = "it exceeded its memory limit of 48 MiB"
    assert found["sandbox"] == ["out_of_memory", 137, reason, ALL, []]
