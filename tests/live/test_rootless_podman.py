"""The docker backend on Podman of an ordinary user; minutes, so that it is run by hand."""

import os

import pytest

from agentsvc.plugin.backend import Network
from agentsvc.testing.checks import CHECKS, Check
from tests.live.containers import Engine
from tests.live.reaching import reached
from tests.live.rootless import VARIABLE
from tests.live.test_container_kits import hold, options_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(240, func_only=True)]

if VARIABLE not in os.environ:
    pytest.skip("it takes minutes: run `poe live-rootless`", allow_module_level=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_podman_without_root_keeps_the_contract(check: Check, rootless_podman: Engine) -> None:
    hold(check, options_of(rootless_podman, frozenset()), host=rootless_podman.url)


async def test_an_open_sandbox_of_podman_without_root_reaches_this_server_and_no_neighbour(
    rootless_podman: Engine,
) -> None:
    found = await reached(rootless_podman, Network.OPEN)
    assert (found[0], found[-1]) == ("yes", "no")
