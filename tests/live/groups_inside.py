"""Run inside a kernel whose control groups are of version 2: what the server does with them."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from process import groups
from process.backend import ProcessBackend
from process.programs import watch
from process.settings import ProcessConfig

from agentsvc.base.values import new_id
from agentsvc.plugin.backend import BackendContext, Handle, Limits, Order, Phase
from tests.live.uml import tell

TOP = Path("/mnt/groups")
MEGABYTE = 1024 * 1024


def hog() -> None:
    bytearray(128 * MEGABYTE)


def forks() -> int:
    """Return how many children can be had; none of them stays."""
    made = []
    try:
        for _ in range(15):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            made.append(pid)
    except OSError:
        pass
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(made)


def burn() -> None:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass


def run_in(held: groups.SandboxGroups, work: Callable[[], Any]) -> Any:
    """Return what the work returns in the groups, or the signal that ended it."""

    def inside() -> Any:
        watch.apply_limits({"join": held.joined})
        return work()

    return in_child(inside)


def in_child(work: Callable[[], Any], uid: int = 0) -> Any:
    """Return what the work says, done in a fork, as that user."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        try:
            if uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            os.write(theirs, json.dumps(work()).encode())
        except Exception as exc:  # noqa: BLE001  # told to whoever waits
            os.write(theirs, json.dumps(repr(exc)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as file:
        said = file.read()
    _, status = os.wait()
    return json.loads(said) if said else os.waitstatus_to_exitcode(status)


def enter(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def limited(found: groups.Groups, name: str) -> list[Any]:
    """Return how a hog ends, how many kills are counted, and how many processes there can be."""
    held = found.make(name, Limits(memory_bytes=48 * MEGABYTE, pids=10, cpus=0.5))
    ended = run_in(held, hog)
    kills = watch.read_kills(held.kills)
    made = run_in(held, forks)
    run_in(held, burn)
    assert found.unified is not None
    stat = (found.unified / name / "cpu.stat").read_text().split()
    return [ended, kills, made, int(stat[stat.index("nr_throttled") + 1]) > 0]


def at_the_top() -> list[Any]:
    found = groups.find()
    return [str(found.unified), sorted(found.limits()), *limited(found, "agentsvc-top")]


def delegated() -> list[Any]:
    found = groups.find()
    again = groups.find()
    return [str(found.unified), sorted(found.limits()), again == found]


def delegated_and_used() -> list[Any]:
    return [*delegated(), *limited(groups.find(), "agentsvc-one")]


def not_delegated() -> list[Any]:
    return sorted(groups.find().limits())


async def sandbox_with_a_hog() -> list[Any]:
    """Return how a sandbox ends that wants too much memory, and what is left of its groups."""
    context = BackendContext(instance_id=new_id(), state_dir=Path("/mnt/state"))
    backend = ProcessBackend(ProcessConfig(use_bubblewrap=False), context)
    await backend.open()
    order = Order(
        sandbox_id=new_id(),
        command=("{python}", "-Ic", f"bytearray({128 * MEGABYTE})"),
        limits=Limits(memory_bytes=48 * MEGABYTE, pids=50, cpus=1),
    )
    handle = await backend.create(order, save)
    async with asyncio.timeout(40):
        report = await backend.inspect(handle)
        while report.phase is not Phase.FAILED:
            report = await backend.inspect(handle)
    await backend.delete(handle)
    enforced = sorted(report.enforced or ())
    return [report.cause, report.exit_code, report.reason, enforced, groups_of(order.sandbox_id)]


def groups_of(sandbox_id: str) -> list[str]:
    return [path.name for path in TOP.glob("**/agentsvc-*") if sandbox_id in path.name]


async def save(_handle: Handle) -> None:
    """Keep nothing."""


def main() -> None:
    TOP.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", str(TOP)], check=True)
    result: dict[str, Any] = {"top": at_the_top()}
    for name, attribute, uid, work in (
        ("unit", "trusted.delegate", 0, delegated),
        ("mine", "user.delegate", 1000, delegated_and_used),
        ("none", "", 0, not_delegated),
        ("other", "", 1000, not_delegated),
    ):
        group = TOP / name
        group.mkdir()
        if attribute:
            os.setxattr(group, attribute, b"1")
            for path in (group, *(group / file for file in DELEGATED)):
                os.chown(path, uid, uid)
        enter(group)
        result[name] = in_child(work, uid)
        enter(TOP)
    result["sandbox"] = asyncio.run(sandbox_with_a_hog())
    tell(result)


DELEGATED = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")

if __name__ == "__main__":
    main()
