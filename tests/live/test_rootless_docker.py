"""The docker backend on Docker of an ordinary user: the kit, and what is promised of networks."""

import os

import pytest

from agentsvc.plugin.backend import Network
from agentsvc.testing.checks import CHECKS, Check
from tests.live.containers import Engine
from tests.live.reaching import reached
from tests.live.rootless import VARIABLE
from tests.live.test_container_kits import hold, options_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(240, func_only=True)]

# What an engine without root could do otherwise; `poe live-rootless` runs the rest, too.
OTHERWISE = (
    "after_delete_nothing_is_left_on_the_host",
    "what_a_sandbox_is_said_to_use_grows_with_its_work",
    "a_paused_sandbox_rests_and_goes_on_with_its_files",
    "a_failed_sandbox_starts_again_on_its_files",
    "a_stopped_sandbox_keeps_its_files_only",
    "a_sandbox_begins_with_a_copy_of_a_layer",
    "execute_ends_the_command_and_its_children_in_time",
    "limits_that_are_not_enforced_are_refused",
)
CHOSEN = [check for check in CHECKS if check.name in OTHERWISE or VARIABLE in os.environ]


@pytest.mark.parametrize("check", CHOSEN, ids=lambda check: check.name)
def test_docker_without_root_keeps_the_contract(check: Check, rootless_docker: Engine) -> None:
    hold(check, options_of(rootless_docker, frozenset()), host=rootless_docker.url)


async def test_a_fenced_sandbox_of_docker_without_root_reaches_this_server_only(
    rootless_docker: Engine,
) -> None:
    found = await reached(rootless_docker, Network.NONE)
    assert found == ["yes", "no", "no", "no", "no"]


async def test_an_open_sandbox_of_docker_without_root_reaches_this_server_and_no_neighbour(
    rootless_docker: Engine,
) -> None:
    found = await reached(rootless_docker, Network.OPEN)
    assert (found[0], found[-1]) == ("yes", "no")
