"""Memory of paused sandboxes, in a kernel of its own that has swap: out, back, and the same."""

import os
import shutil
from pathlib import Path

import pytest

from tests.live.conftest import unavailable
from tests.live.uml import PROGRAM, run_inside

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

_SWAP_BYTES = 256 * 2**20
_CYCLES = 5


async def test_memory_of_a_paused_sandbox_goes_to_swap_and_comes_back(tmp_path: Path) -> None:
    if shutil.which(PROGRAM) is None:
        unavailable(f"`{PROGRAM}` is missing: install the package `user-mode-linux`")
    swap = tmp_path / "swap"
    swap.touch(mode=0o600)
    os.truncate(swap, _SWAP_BYTES)
    found = await run_inside(tmp_path, f"tests.live.reclaiming_inside {_CYCLES}", swap)
    assert "no swap" in found["before"]
    for way in ("by_group", "by_process"):
        seen = found[way]
        # It goes on, in each cycle after another server, as the same process with the same bytes.
        assert seen["cycles"] == _CYCLES, way
        assert seen["paused_as"] == ["frozen", "reclaimed"] * seen["cycles"], way
        assert seen["answers"] == [[str(count), seen["digest"]] for count in range(seen["cycles"])]
        assert min(seen["swapped_bytes"]) > seen["ballast_bytes"] / 2, way
        little = found[f"little_{way}"]
        assert little == {"paused_as": ["frozen", "frozen", "reclaimed"], "none": True}, way
    assert found["by_group"]["swap_limit"] == "0"
