"""Checks of the conformance kit: layers, copies, and checkpoints of files."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from agentsvc.base import Conflict, OrderRejected, new_id
from agentsvc.plugin import Capability, Handle, Phase, StillFetching
from agentsvc.testing.promises import check, needs
from agentsvc.testing.rig import Rig, expect, expect_error

_POLL_SECONDS: Final = 0.05


@check(needs(Capability.LAYERS))
async def a_sandbox_begins_with_a_copy_of_a_layer(rig: Rig) -> None:
    """Check that a layer outlives its sandbox, is copied for each, and is never partial."""
    handle, _ = await rig.run(rig.order())
    layer = new_id()
    await _write_note(rig, handle, "kept")

    async def keep(max_bytes: int = 2**40) -> int:
        return await _fetched(lambda: rig.backend.keep_layer(handle, layer, max_bytes=max_bytes))

    await expect_error(Conflict, keep(), "a layer of what runs")
    await rig.backend.stop(handle)
    if why_not := rig.backend.why_no_copies():
        await expect_error(OrderRejected, keep(), f"a layer, although {why_not},")
        return
    await expect_error(OrderRejected, keep(0), "a layer that is too large")
    expect(layer not in await rig.backend.layers(), "a layer that was refused is listed")
    for _ in range(2):
        expect(await keep() > 0, "a layer has no size")
    expect(layer in await rig.backend.layers(), "a layer is not listed")
    await rig.backend.delete(handle)
    for _ in range(2):
        handle, _ = await _fetched(partial(rig.run, rig.order(layer=layer)))
        expect(await _read_note(rig, handle) == b"kept", "the files are others")
        await _write_note(rig, handle, "changed")
    for _ in range(2):
        await rig.backend.remove_layer(layer)
    expect(layer not in await rig.backend.layers(), "a removed layer is listed")
    expect(await _read_note(rig, handle) == b"changed", "files went with the layer")
    await expect_error(OrderRejected, rig.create(rig.order(layer=layer)), "a layer that is gone")


@check(needs(Capability.COPIES))
async def a_sandbox_begins_with_the_files_of_another(rig: Rig) -> None:
    """Check that files of a running sandbox are copied, and are independent afterwards."""
    first, _ = await rig.run(rig.order())
    await _write_note(rig, first, "kept")
    begin = partial(rig.run, rig.order(copy_of=first.sandbox_id))
    if why_not := rig.backend.why_no_copies():
        await expect_error(OrderRejected, begin(), f"a copy, although {why_not},")
        return
    handle, _ = await _fetched(begin)
    expect(await _read_note(rig, handle) == b"kept", "the files are others")
    await _write_note(rig, handle, "own")
    expect(await _read_note(rig, first) == b"kept", "files are shared")
    await rig.backend.delete(first)
    expect(await _read_note(rig, handle) == b"own", "files went with their origin")
    gone = rig.order(copy_of=first.sandbox_id)
    await expect_error(OrderRejected, rig.create(gone), "a copy of what is gone")


@check(needs(Capability.CHECKPOINTS))
async def a_sandbox_goes_back_to_its_checkpoints(rig: Rig) -> None:
    """Check that checkpoints of a running sandbox are limited in number and can be restored."""
    order = rig.order()
    await rig.close(rig.backend)
    rig.backend = await rig.open(keeps_checkpoints=True)
    handle, _ = await rig.run(order)
    ids = [new_id() for _ in range(3)]
    for number, one in enumerate(ids):
        await _write_note(rig, handle, f"text-{number}")
        take = partial(rig.backend.checkpoint, handle, one, keep=2, max_bytes=10**9)
        try:
            await _fetched(take)
        except OrderRejected:
            if rig.backend.why_no_copies():
                return
            raise
    found = [one.id for one in await rig.backend.checkpoints(handle)]
    expect(found == ids[1:], f"other checkpoints than the last two are kept: {found}")
    too_much = partial(rig.backend.checkpoint, handle, new_id(), keep=2, max_bytes=0)
    await expect_error(OrderRejected, _fetched(too_much), "a checkpoint that is too large")
    back = partial(rig.backend.roll_back, handle)
    await expect_error(Conflict, back(ids[1]), "going back of what runs")
    await rig.backend.stop(handle)
    await expect_error(OrderRejected, back(ids[0]), "going back to what is gone")
    for number in (1, 2, 1):
        await rig.backend.stop(handle)
        await back(ids[number])
        save = rig.save_to(order.sandbox_id)
        handle = await _fetched(partial(rig.backend.restart, order, handle, save))
        await rig.wait(handle, Phase.RUNNING)
        expect(await _read_note(rig, handle) == f"text-{number}".encode(), "the files are others")
        await _write_note(rig, handle, "changed")


async def _write_note(rig: Rig, handle: Handle, text: str) -> None:
    """Write a file by a command in the working directory, or by the workload without EXECUTE."""
    report = await rig.backend.inspect(handle)
    if Capability.EXECUTE in rig.kind.capabilities:
        await _sh(rig, handle, f"printf %s {text} >{report.working_dir}/note")
    else:
        await rig.ask(report, "PUT", "/files/note", text.encode())


async def _read_note(rig: Rig, handle: Handle) -> bytes:
    report = await rig.backend.inspect(handle)
    if Capability.EXECUTE in rig.kind.capabilities:
        return await _sh(rig, handle, f"cat {report.working_dir}/note")
    return await rig.ask(report, "GET", "/files/note")


async def _sh(rig: Rig, handle: Handle, script: str) -> bytes:
    result = await rig.sh(handle, script)
    expect(result.exit_code == 0, f"`{script}` failed: {result.stderr!r}")
    return result.stdout


async def _fetched[T](ask: Callable[[], Awaitable[T]]) -> T:
    """Call until it no longer raises StillFetching."""
    while True:
        try:
            return await ask()
        except StillFetching:
            await asyncio.sleep(_POLL_SECONDS)
