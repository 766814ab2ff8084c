"""What limits a sandbox has whose spec leaves some open, and what counts of its memory."""

import os

import msgspec
import pytest

from agentsvc.config.sandboxes import DefaultLimits, MinimumIsolation, SandboxesConfig
from agentsvc.plugin.backend import Fences, Isolation, Limits, Spec
from agentsvc.sandboxes.isolation import as_now, floor_of, protection_of, with_limits
from agentsvc.testing import FakeWorld

GIBIBYTE = 1024**3
CONFIG = SandboxesConfig(limits=DefaultLimits(memory_bytes=GIBIBYTE, disk_bytes=5, pids=7))
ALL = frozenset({"memory_bytes", "disk_bytes", "pids", "open_files", "cpus"})


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    world.fences = Fences(limits=ALL)
    return world


def test_a_sandbox_of_this_machine_has_its_disk_limited(world: FakeWorld) -> None:
    assert limits_of(world).disk_bytes is None
    world.is_here = True
    assert limits_of(world).disk_bytes == CONFIG.limits.disk_bytes


def limits_of(world: FakeWorld, config: SandboxesConfig = CONFIG, **given: int) -> Limits:
    spec = Spec(id="x", limits=Limits(**given))
    return with_limits(spec, world.backend(), config).limits


def test_a_spec_has_what_it_leaves_open_limited_by_default(world: FakeWorld) -> None:
    world.is_here = True
    assert limits_of(world) == Limits(memory_bytes=GIBIBYTE, disk_bytes=5, pids=7, open_files=65536)
    assert limits_of(world, pids=9, disk_bytes=0).pids == 9
    assert limits_of(world, pids=9, disk_bytes=0).disk_bytes is None


def test_a_limit_by_default_that_is_not_enforced_is_left_out_and_said(world: FakeWorld) -> None:
    world.fences = Fences(limits=frozenset({"pids", "disk_bytes"}))
    # How large a disk is that is not of this machine, its backend says.
    assert limits_of(world) == Limits(pids=7)
    told = protection_of("fake", world.backend(), Spec(id="x"), CONFIG)
    assert (told.limits, told.not_limited) == ({"pids": 7}, ["memory_bytes", "open_files"])
    assert told.describe() == (
        "isolation: none; limits: pids, NOT limited: memory_bytes, open_files"
    )


def test_memory_by_default_is_no_more_than_may_run_at_all(world: FakeWorld) -> None:
    few = msgspec.structs.replace(CONFIG, max_memory_bytes=1000)
    assert limits_of(world, few).memory_bytes == 1000
    many = SandboxesConfig(limits=DefaultLimits(memory_bytes=2**60))
    assert limits_of(world, many).memory_bytes == 2**60
    world.is_here = True
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limits_of(world, many).memory_bytes == machine // 2


def test_a_sandbox_that_is_there_is_started_with_what_holds_now(world: FakeWorld) -> None:
    backend = world.backend()
    stored = with_limits(Spec(id="x", limits=Limits(cpus=2.0)), backend, CONFIG)
    world.fences = Fences(limits=frozenset({"pids"}))
    # The limits by default are left out; what the spec itself asked for is still refused.
    assert as_now(stored, backend, CONFIG).limits == Limits(cpus=2.0, pids=7)
    world.least_isolation = Isolation.BUBBLEWRAP
    assert as_now(Spec(id="old"), backend, CONFIG).isolation is Isolation.BUBBLEWRAP


def test_a_floor_is_the_configured_one_but_never_below_what_must_be(world: FakeWorld) -> None:
    backend = world.backend()
    assert floor_of(backend, CONFIG) is Isolation.NONE
    landlock = msgspec.structs.replace(CONFIG, isolation=MinimumIsolation.LANDLOCK)
    assert floor_of(backend, landlock) is Isolation.LANDLOCK
    world.least_isolation = Isolation.BUBBLEWRAP
    assert floor_of(backend, landlock) is Isolation.BUBBLEWRAP
