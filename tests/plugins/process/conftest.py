"""A process backend of the tests' own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.plugins.process.rig import CoreRig, core_rig


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[CoreRig]:
    async with core_rig(tmp_path) as rig:
        yield rig
