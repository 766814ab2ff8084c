"""What an engine must be told for sandboxes to be kept on its disk."""

from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.plugin.backend import PausedAs, Phase
from tests.plugin_loading import part

if TYPE_CHECKING:
    from docker import engine, hibernation, inspection
else:
    engine, hibernation = part("docker.engine"), part("docker.hibernation")
    inspection = part("docker.inspection")

SAVING = ["--platform=systrap", "--net-disconnect-ok"]


def why_not(
    arguments: list[str], *, runtime: str = "runsc", experimental: bool = True, podman: bool = False
) -> str:
    info: dict[str, Any] = {
        "ExperimentalBuild": experimental,
        "DefaultRuntime": "runc",
        "Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": "x", "runtimeArgs": arguments}},
    }
    version = {"Components": [{"Name": "Podman Engine" if podman else "Engine"}]}
    return hibernation.why_not(engine.to_facts(info, version, is_beside=True), runtime)


def test_gvisor_that_cuts_connections_is_kept_on_disk() -> None:
    assert not why_not(SAVING)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"arguments": []}, "needs `--net-disconnect-ok`"),
        ({"arguments": ["--net-disconnect-ok=false"]}, "needs `--net-disconnect-ok`"),
        ({"arguments": [*SAVING, "--network=host"]}, "not `--network=host`"),
        ({"arguments": SAVING, "experimental": False}, "set `experimental`"),
        ({"arguments": SAVING, "runtime": ""}, "only gVisor containers"),
        ({"arguments": SAVING, "podman": True}, "CRIU"),
    ],
)
def test_what_is_missing_is_named(told: dict[str, Any], said: str) -> None:
    assert said in why_not(**told)


@pytest.mark.parametrize(
    ("status", "is_paused", "is_on_disk", "expected"),
    [
        ("exited", True, True, (Phase.PAUSED, PausedAs.ON_DISK)),
        ("exited", False, True, (Phase.PAUSED, PausedAs.ON_DISK)),
        ("exited", True, False, (Phase.PAUSED, PausedAs.STOPPED)),
        ("exited", False, False, (Phase.FAILED, None)),
        ("running", True, True, (Phase.PAUSED, PausedAs.FROZEN)),
    ],
)
def test_a_sandbox_is_on_disk_once_it_has_ended(
    status: str, expected: tuple[Phase, PausedAs | None], *, is_paused: bool, is_on_disk: bool
) -> None:
    container = {"State": {"Status": status, "StartedAt": "2026-11-26T21:00:00.5Z"}}
    seen = inspection.ContainerStates(
        container=container, front=None, is_paused=is_paused, is_on_disk=is_on_disk
    )
    report = inspection.to_report(seen)
    assert (report.phase, report.paused_as) == expected


def test_another_run_has_another_name() -> None:
    names = {
        hibernation.name_of({"State": {"StartedAt": f"2026-11-26T21:00:0{one}.5Z"}})
        for one in range(3)
    }
    assert len(names) == 3
