"""Fixtures of the older generation: git hosting services."""

from collections.abc import AsyncIterator

import pytest

from tests.git_hosts import GitHosts


@pytest.fixture
async def git_hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts
