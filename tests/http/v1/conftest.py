"""Fixtures of the newer generation: a new user, git hosting services, and one that is not there."""

import socket
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from tests.git_hosts import GitHosts
from tests.service import Client, Service


@pytest.fixture
async def git_hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts


@pytest.fixture
async def token_checks(service: Service) -> None:
    """Have tokens shown to their provider before they are stored."""
    git = msgspec.structs.replace(service.config.git, check_tokens=True)
    service.config = msgspec.structs.replace(service.config, git=git)
    await service.restart()


@pytest.fixture
def unreachable_url() -> Iterator[str]:
    """Return the URL of a port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
async def newcomer(service: Service) -> Client:
    """Return a client of a user who never saved settings."""
    return await service.make_client("newcomer", Role.MEMBER)
