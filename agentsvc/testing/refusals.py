"""Checks of the conformance kit: rejected orders, protected secrets, and a responsive event loop."""

import asyncio
import logging
from typing import Any, Final

import msgspec

from agentsvc.base import BackendUnavailable, HandleTooNew, OrderRejected, Unsupported, new_key
from agentsvc.plugin import Capability, Isolation, Limits, Network, Order, Phase, Spec
from agentsvc.testing.inspection import LogRecords, all_arguments, calls_of, still_seconds
from agentsvc.testing.promises import check
from agentsvc.testing.rig import Backend, KitOptions, Rig, expect, expect_error, together

STILL_SECONDS_MAX: Final = 0.2
"""How long a call may block the event loop."""

LIMITS: Final[tuple[Limits, ...]] = (
    Limits(cpus=1.0),
    Limits(memory_bytes=512 * 1024 * 1024),
    Limits(disk_bytes=1024 * 1024 * 1024),
    Limits(pids=64),
    Limits(open_files=512),
)


@check()
async def limits_that_are_not_enforced_are_refused(rig: Rig) -> None:
    """Check that a limit is enforced and reported so, or rejected by check_spec and create."""

    async def enforced(order: Order, spec: Spec, field: str) -> None:
        await _check_spec(rig, spec)
        report = await rig.wait(await rig.create(order), Phase.RUNNING)
        expect(field in (report.enforced or ()), f"{field} is not said to be enforced")

    making = []
    for limits in LIMITS:
        [field] = (name for name in limits.__struct_fields__ if getattr(limits, name) is not None)
        order = rig.order(limits=limits)
        asked = {name: getattr(order, name) for name in ("image", "command", "ports", "options")}
        spec = Spec(id="kit", limits=limits, **asked)
        if field in rig.backend.fences(order).limits | rig.options.enforced_limits:
            making.append(enforced(order, spec, field))
            continue
        await expect_error(OrderRejected, rig.create(order), f"create with {field}")
        await expect_error(OrderRejected, _check_spec(rig, spec), f"check_spec with {field}")
        expect(not await rig.is_listed(order.sandbox_id), "what was refused was made")
    await together(*making)


@check()
async def what_is_not_fenced_is_refused_and_what_is_reported_is(rig: Rig) -> None:
    """Check that stronger isolation and other networks than available are rejected."""
    order = rig.order()
    fences = rig.backend.fences(order)
    changes: list[dict[str, Any]] = [
        *({"isolation": one} for one in Isolation if not fences.isolation.meets(one)),
        *({"network": one} for one in Network if one not in fences.networks),
    ]
    for change in changes:
        more = rig.order(**change)
        await expect_error(OrderRejected, rig.create(more), f"create with {change}")
        expect(not await rig.is_listed(more.sandbox_id), "what was refused was made")
    _, report = await rig.run(order)
    expect(
        (report.isolation or Isolation.NONE).meets(fences.isolation),
        f"it runs as {report.isolation}, and fences says {fences.isolation}",
    )


def _declares_everything(kind: type[Backend], _options: KitOptions) -> str:
    return "" if _undeclared(kind) else "it declares every capability that has a method"


@check(_declares_everything)
async def an_undeclared_capability_is_unsupported(rig: Rig) -> None:
    """Check that the methods of an undeclared capability raise Unsupported."""
    order = rig.order()
    handle, _ = await rig.run(order)

    calls = calls_of(rig, order, handle)
    for capability in _undeclared(rig.kind):
        await expect_error(Unsupported, calls[capability](), capability)


@check()
async def a_handle_of_a_newer_version_is_refused(rig: Rig) -> None:
    """Check that after a downgrade a backend raises an error instead of guessing."""
    handle = await rig.create(rig.order())
    newer = msgspec.structs.replace(handle, version=handle.version + 1000)
    await expect_error(HandleTooNew, rig.backend.inspect(newer), "inspect")
    await expect_error(HandleTooNew, rig.backend.delete(newer), "delete")
    expect(await rig.is_listed(handle.sandbox_id), "it was deleted all the same")


def _without_unreachable(_kind: type[Backend], options: KitOptions) -> str:
    return "" if options.unreachable else "the kit was not told how to make it unreachable"


@check(_without_unreachable)
async def an_unreachable_control_plane_is_not_gone(rig: Rig) -> None:
    """Check that an unreachable control plane raises BackendUnavailable."""
    handle, _ = await rig.run()
    assert rig.options.unreachable is not None  # noqa: S101  # else the check is skipped
    async with rig.options.unreachable(rig.backend):
        await expect_error(BackendUnavailable, rig.backend.inspect(handle), "inspect")
        await expect_error(BackendUnavailable, rig.backend.scan(), "scan")
    await rig.wait(handle, Phase.RUNNING)


@check()
async def a_secret_arrives_and_shows_nowhere_else(rig: Rig) -> None:
    """Check that a secret is in the sandbox's environment and nowhere else."""
    secret = new_key()
    records = LogRecords()
    logging.getLogger().addHandler(records)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        order = rig.order(secret_env={"KIT_SECRET": secret})
        handle, report = await rig.run(order)
        shown = [repr(report), repr(handle), repr(await rig.backend.scan())]
        shown += [repr(await rig.backend.probe()), await asyncio.to_thread(all_arguments)]
    finally:
        logging.getLogger().setLevel(level)
        logging.getLogger().removeHandler(records)
    answer = await rig.ask(report, "GET", "/env/KIT_SECRET")
    expect(answer == secret.reveal().encode(), "the secret does not arrive")
    places = ("report", "handle", "scan", "probe", "arguments of processes", "log")
    for place, text in zip(places, [*shown, records.text()], strict=True):
        expect(secret.reveal() not in text, f"the secret is in: {place}")


@check()
async def no_call_blocks_the_event_loop(rig: Rig) -> None:
    """Check that slow work is awaited or run in a thread."""
    longest: dict[str, float] = {}
    # The minimum of three, so that a busy machine is not mistaken for a blocking call.
    for _ in range(3):
        for name, seconds in (await still_seconds(rig)).items():
            longest[name] = min(seconds, longest.get(name, seconds))
        if max(longest.values()) < STILL_SECONDS_MAX:
            break
    for name, seconds in longest.items():
        expect(seconds < STILL_SECONDS_MAX, f"{name} blocks the loop for {seconds:.2f} s")


async def _check_spec(rig: Rig, spec: Spec) -> None:
    rig.backend.check_fences(spec)
    rig.backend.check_spec(spec)


def _undeclared(kind: type[Backend]) -> list[Capability]:
    without_method = {Capability.LIMITS, Capability.COPIES, Capability.SURVIVES_RESTART}
    return [one for one in Capability if one not in kind.capabilities | without_method]
