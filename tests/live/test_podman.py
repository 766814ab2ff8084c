"""What the docker backend promises of networks, on Podman, which fences nothing off by itself."""

import pytest

from agentsvc.plugin.backend import Network
from tests.live import test_docker_backend as promises
from tests.live.containers import Engine

pytestmark = [pytest.mark.live, pytest.mark.timeout(180, func_only=True)]


async def test_a_fenced_sandbox_reaches_the_server_and_neither_this_machine_nor_its_neighbour(
    podman: Engine,
) -> None:
    await promises.test_a_fenced_sandbox_reaches_the_server_and_neither_this_machine_nor_its_neighbour(
        podman, Network.NONE
    )


async def test_an_open_sandbox_reaches_the_server_and_nothing_else_of_this_machine(
    podman: Engine,
) -> None:
    await promises.test_an_open_sandbox_reaches_the_server_and_nothing_else_of_this_machine(podman)
