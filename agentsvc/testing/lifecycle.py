"""Checks of the conformance kit: the life cycle of a sandbox, from create to delete."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import Conflict, new_id, new_key
from agentsvc.plugin import HANDLE_BYTES_MAX, Capability, Endpoint, Handle, PausedAs, Phase, Report
from agentsvc.testing.inspection import check_usage, is_served, stopped_and_started
from agentsvc.testing.promises import check, needs
from agentsvc.testing.rig import Rig, expect, expect_error, together, web_endpoint, web_url

CANCEL_AFTER: Final = (0.0, 0.001, 0.004, 0.015, 0.04, 0.1)
_MAX_NAMED: Final = 10


@check()
async def a_created_sandbox_runs_and_its_ports_answer(rig: Rig) -> None:
    """Check that the endpoint of a running sandbox leads to that sandbox."""
    order = rig.order()
    _, report = await rig.run(order)
    expect(await rig.ask(report, "GET", "/name") == order.sandbox_id.encode(), "another answers")


@check()
async def what_has_the_address_of_another_sandbox_is_not_confirmed(rig: Rig) -> None:
    """Check that confirm accepts the sandbox's own connections only, and none after delete.

    Unix sockets, TLS endpoints and sandboxes behind another gateway are identified otherwise.
    """
    handle, report = await rig.run(rig.order())
    other, others_report = await rig.run(rig.order())
    own, others = web_endpoint(report), web_endpoint(others_report)
    if own.needs_key or urlsplit(own.url).scheme != "http":
        return

    async def is_confirmed(whose: Handle, where: Endpoint) -> bool:
        found = urlsplit(others.url if where is others else own.url)
        _, writer = await asyncio.open_connection(found.hostname, found.port or 80)
        try:
            port = writer.get_extra_info("sockname")[1]
            return await rig.backend.confirm(whose, where, port)
        finally:
            writer.transport.abort()

    expect(await is_confirmed(handle, own), "its own address is not confirmed")
    expect(not await is_confirmed(handle, others), "another's address is confirmed as its own")
    await rig.backend.delete(handle)
    expect(not await rig.backend.confirm(handle, own, 1), "it is confirmed although it is gone")
    expect(await is_confirmed(other, others), "the other's address is not confirmed any more")


@check()
async def the_handle_is_saved_before_create_returns(rig: Rig) -> None:
    """Check that save is awaited, and that create returns the handle saved last."""
    order = rig.order()
    handle = await rig.create(order)
    saved = rig.saved[order.sandbox_id]
    expect(bool(saved), "create returned before save did")
    expect(saved[-1] == handle, "create returned another handle than it saved last")


@check()
async def the_handle_survives_json_and_holds_no_secret(rig: Rig) -> None:
    """Check that a handle of at most 8 KiB works after a round trip through JSON."""
    secret = new_key()
    handle, _ = await rig.run(rig.order(secret_env={"KIT_SECRET": secret}))
    stored = msgspec.json.encode(handle)
    expect(secret.reveal().encode() not in stored, "the handle holds a secret")
    expect(len(msgspec.json.encode(handle.data)) <= HANDLE_BYTES_MAX, "the handle is too large")
    read = msgspec.json.decode(stored, type=Handle)
    expect(read == handle, "the handle is not the same after JSON")
    await rig.wait(read, Phase.RUNNING)


@check()
async def the_same_order_twice_gives_one_sandbox(rig: Rig) -> None:
    """Check that create, repeated after a crash, finds the existing sandbox."""
    order = rig.order()
    _, first = await rig.run(order)
    again = await rig.create(order)
    second = await rig.wait(again, Phase.RUNNING)
    found = [one for one in await rig.backend.scan() if one.handle.sandbox_id == order.sandbox_id]
    expect(len(found) == 1, f"scan lists it {len(found)} times")
    expect(first.endpoints == second.endpoints, "the second order moved it elsewhere")


@check()
async def different_orders_at_once_give_different_sandboxes(rig: Rig) -> None:
    """Check that calls for different sandboxes run concurrently and share nothing."""

    async def live(name: str) -> str:
        handle, report = await rig.run(rig.order(sandbox_id=name, env={"KIT_NAME": name}))
        answer = await rig.ask(report, "GET", "/name")
        expect(answer == name.encode(), "two sandboxes share an address")
        await rig.backend.delete(handle)
        return web_url(report)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(live(new_id())) for _ in range(5)]
    expect(len({task.result() for task in tasks}) == len(tasks), "two sandboxes share an address")


@check()
async def a_cancelled_create_leaves_nothing_unseen(rig: Rig) -> None:
    """Check that create, cancelled at any moment, leaves nothing that scan does not list."""
    names = []
    for seconds in CANCEL_AFTER:
        order = rig.order()
        names.append(order.sandbox_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await rig.create(order)
        for item in await rig.backend.scan():
            await rig.backend.delete(item.handle)
    expect(not await rig.is_heard(*names), "a workload runs that scan did not list")
    expect(not await rig.backend.scan(), "a sandbox appeared after its create had ended")


@check()
async def a_save_that_fails_makes_create_fail_and_delete_cleans_up(rig: Rig) -> None:
    """Check that no sandbox remains without a stored handle."""
    order = rig.order()
    handles = []

    async def save(handle: Handle) -> None:
        handles.append(handle)
        raise OSError("no space left")

    with contextlib.suppress(OSError):
        await rig.backend.create(order, save)
        raise AssertionError("create went on although the handle was not saved")
    found = [item.handle for item in await rig.backend.scan()]
    for handle in found or handles:
        await rig.backend.delete(handle)
    expect(not await rig.is_listed(order.sandbox_id), "delete left something")
    expect(not await rig.is_heard(order.sandbox_id), "delete left the workload running")


@check()
async def a_sandbox_that_never_was_is_gone(rig: Rig) -> None:
    """Check that inspect returns a report for an unknown sandbox, not an error."""
    handle = await rig.create(rig.order())
    await rig.backend.delete(handle)
    stranger = msgspec.structs.replace(handle, sandbox_id=new_id())
    report = await rig.backend.inspect(stranger)
    expect(report.phase is Phase.GONE, f"it is {report.phase}")


@check()
async def a_workload_that_exits_is_failed_with_its_exit_code(rig: Rig) -> None:
    """Check that a sandbox whose command exited is FAILED, with exit code and one-line reason."""

    async def later() -> tuple[Handle, Report]:
        handle, running = await rig.run()
        await rig.ask(running, "POST", "/exit/3")
        return handle, await rig.wait(handle, Phase.FAILED)

    ended = await together(rig.fail(7), later())
    for (_, report), code in zip(ended, (7, 3), strict=True):
        expect(report.exit_code == code, f"the exit code is {report.exit_code}, not {code}")
        expect(bool(report.reason), "the report does not say why")
        expect("\n" not in report.reason, "the reason is more than one line")


@check()
async def delete_works_in_every_phase_and_twice(rig: Rig) -> None:
    """Check that delete works in any phase and with any saved handle."""

    async def starting() -> Handle:
        return await rig.create(rig.order())

    async def running() -> Handle:
        return (await rig.run())[0]

    async def half_saved() -> Handle:
        handle, _ = await rig.run()
        return rig.saved[handle.sandbox_id][0]

    async def failed() -> Handle:
        return (await rig.fail())[0]

    async def paused() -> Handle:
        handle, _ = await rig.run()
        await rig.backend.pause(handle)
        return handle

    async def stopped() -> Handle:
        handle, _ = await rig.run()
        await rig.backend.stop(handle)
        return handle

    phases = [starting, running, half_saved, failed]
    resting = {Capability.PAUSE: paused, Capability.STOP: stopped}
    phases += [resting[one] for one in resting.keys() & rig.kind.capabilities]

    async def live(make: Callable[[], Awaitable[Handle]]) -> None:
        handle = await make()
        for _ in range(2):
            await rig.backend.delete(handle)
        phase = (await rig.backend.inspect(handle)).phase
        expect(phase is Phase.GONE, f"{make.__name__}: it is {phase} after delete")

    await together(*(live(make) for make in phases))


@check()
async def after_delete_nothing_answers_and_scan_is_empty(rig: Rig) -> None:
    """Check that delete returns when everything is gone, not when that was requested."""
    handle, report = await rig.run()
    await rig.backend.delete(handle)
    expect(not await rig.backend.scan(), "scan still lists it")
    expect(not await is_served(rig, report), "its port still answers")
    await rig.expect_unheard(handle, "its workload still runs")


@check()
async def after_delete_nothing_is_left_on_the_host(rig: Rig) -> None:
    """Check without scan that delete removes what create and its failures have left."""

    async def running() -> tuple[Handle, Report]:
        handle, report = await rig.run()
        await rig.ask(report, "PUT", "/files/note", b"to be removed")
        return handle, report

    made = await together(running(), rig.fail())
    expect(await rig.reported_leftovers() != [], "leftovers names nothing of a sandbox that runs")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_AFTER[-1]):
            await rig.create(rig.order())
    for found in await rig.backend.scan():
        await rig.backend.delete(found.handle)
    for handle, _ in made:
        await rig.backend.delete(handle)
    left = await rig.leftovers()
    expect(not left, f"this is left: {', '.join(left[:_MAX_NAMED])}")


@check()
async def scan_lists_only_what_its_own_instance_made(rig: Rig) -> None:
    """Check that two installations can share the infrastructure."""
    other = await rig.open(new_id())
    own, foreign = rig.order(), rig.order()
    await together(rig.create(own), rig.create(foreign, other))
    expect(await rig.is_listed(own.sandbox_id), "scan does not list its own sandbox")
    expect(not await rig.is_listed(foreign.sandbox_id), "scan lists another instance's sandbox")


@check()
async def what_a_sandbox_is_said_to_use_grows_with_its_work(rig: Rig) -> None:
    """Check that usage, if it returns anything, is that of the requested sandbox."""
    handle, report = await rig.run()
    before = await rig.backend.usage(handle)
    if before is not None:
        await check_usage(rig, handle, report, before)
    await rig.backend.delete(handle)
    expect(await rig.backend.usage(handle) is None, "it uses something after delete")


@check()
async def one_that_gives_way_goes_on(rig: Rig) -> None:
    """Check that a sandbox keeps running while its CPU priority is lowered."""
    handle, report = await rig.run()
    for handles in ([handle], [handle], [], [handle]):
        await rig.backend.give_way(handles)
        expect(await is_served(rig, report), f"it does not answer where {len(handles)} give way")
    await rig.backend.delete(handle)
    for handles in ([handle], []):
        await rig.backend.give_way(handles)


@check(needs(Capability.SURVIVES_RESTART))
async def a_new_instance_answers_for_what_an_old_one_made(rig: Rig) -> None:
    """Check that after a restart the handle alone is sufficient."""
    handle, before = await rig.run()
    await rig.close(rig.backend)
    rig.backend = await rig.open()
    after = await rig.wait(handle, Phase.RUNNING)
    expect(after.endpoints == before.endpoints, "the endpoints have changed")
    expect(await rig.is_listed(handle.sandbox_id), "the new instance does not list it")
    await rig.backend.delete(handle)
    expect(not await rig.is_listed(handle.sandbox_id), "the new instance did not delete it")


@check(needs(Capability.SURVIVES_RESTART))
async def close_leaves_sandboxes_running(rig: Rig) -> None:
    """Check that close only closes connections, and is idempotent."""
    handle, report = await rig.run()
    begun = await rig.ask(report, "GET", "/run")
    await rig.close(rig.backend)
    await rig.backend.close()
    if not web_endpoint(report).is_carried:
        answer = await rig.ask(report, "GET", "/name")
        expect(answer == handle.sandbox_id.encode(), "it does not answer any more")
    rig.backend = await rig.open()
    report = await rig.wait(handle, Phase.RUNNING)
    expect(await rig.ask(report, "GET", "/run") == begun, "its command was started anew")


@check(needs(Capability.PAUSE))
async def a_paused_sandbox_rests_and_goes_on_with_its_files(rig: Rig) -> None:
    """Check that nothing runs in a paused sandbox and that no file is lost."""
    handle, report = await rig.run()
    await rig.ask(report, "PUT", "/files/note", b"kept")
    for _ in range(2):
        await rig.backend.pause(handle)
        phase = (await rig.backend.inspect(handle)).phase
        expect(phase is Phase.PAUSED, f"it is {phase} after pause")
    await rig.expect_unheard(handle, "its workload runs although it is paused")
    for _ in range(2):
        handle = await rig.backend.resume(handle)
        report = await rig.wait(handle, Phase.RUNNING)
    expect(await rig.ask(report, "GET", "/files/note") == b"kept", "its files are not the same")


@check(needs(Capability.RECLAIM))
async def a_reclaimed_sandbox_goes_on_where_it_was(rig: Rig) -> None:
    """Check that reclaim loses no more than pause, and reports its state truthfully."""
    handle, report = await rig.run()
    await expect_error(Conflict, rig.backend.reclaim(handle), "reclaim of what runs")
    begun = await rig.ask(report, "GET", "/run")
    await rig.backend.pause(handle)
    handle = await rig.backend.resume(handle)
    report = await rig.wait(handle, Phase.RUNNING)
    keeps_memory = await rig.ask(report, "GET", "/run") == begun
    await rig.backend.pause(handle)
    for _ in range(2):
        await rig.backend.reclaim(handle)
        seen = await rig.backend.inspect(handle)
        is_frozen = seen.paused_as is PausedAs.FROZEN
        is_said = seen.phase is Phase.PAUSED and seen.paused_as is not PausedAs.STOPPED
        expect(is_said, f"after reclaim it is {seen.phase} as {seen.paused_as}")
        why_not = rig.backend.why_no_reclaim()
        expect(is_frozen or not why_not, f"it is said to be reclaimed, although {why_not}")
    handle = await rig.backend.resume(handle)
    report = await rig.wait(handle, Phase.RUNNING)
    is_same = await rig.ask(report, "GET", "/run") == begun
    expect(is_same or not keeps_memory, "its command was started anew")


@check(needs(Capability.HIBERNATE))
async def a_sandbox_on_disk_goes_on_where_it_was(rig: Rig) -> None:
    """Check that a sandbox on disk loses nothing, and that it can be stopped."""
    order = rig.order()
    handle, report = await rig.run(order)
    await rig.ask(report, "PUT", "/files/note", b"kept")
    await expect_error(Conflict, rig.backend.hibernate(handle), "hibernate of what runs")
    begun = await rig.ask(report, "GET", "/run")
    rig.runs.add(begun)
    await rig.backend.pause(handle)
    handle = await rig.backend.resume(handle)
    report = await rig.wait(handle, Phase.RUNNING)
    keeps_memory = await rig.ask(report, "GET", "/run") == begun
    await _hibernated(rig, handle)
    await rig.expect_unheard(handle, "its workload runs although it is on disk")
    rig.backend = await rig.open()
    for _ in range(2):
        handle = await rig.backend.resume(handle)
        report = await rig.wait(handle, Phase.RUNNING)
    is_same = await rig.ask(report, "GET", "/run") == begun
    expect(is_same or not keeps_memory, "its command was started anew")
    await _hibernated(rig, handle)
    await stopped_and_started(rig, order, handle)


@check(needs(Capability.RESTART))
async def a_failed_sandbox_starts_again_on_its_files(rig: Rig) -> None:
    """Check that restart keeps the files, and raises Conflict if they are gone."""
    order = rig.order()
    handle, report = await rig.run(order)
    await rig.ask(report, "PUT", "/files/note", b"kept")
    await rig.ask(report, "POST", "/exit/3")
    await rig.wait(handle, Phase.FAILED)
    save = rig.save_to(order.sandbox_id)
    for _ in range(2):
        handle = await rig.backend.restart(order, handle, save)
        report = await rig.wait(handle, Phase.RUNNING)
    expect(await rig.ask(report, "GET", "/files/note") == b"kept", "its files are not the same")
    await rig.backend.delete(handle)
    await expect_error(Conflict, rig.backend.restart(order, handle, save), "restart after delete")


@check(needs(Capability.STOP))
async def a_stopped_sandbox_keeps_its_files_only(rig: Rig) -> None:
    """Check that stop ends all processes and reports STOPPED, and that restart works."""
    order = rig.order()
    handle, report = await rig.run(order)
    await rig.ask(report, "PUT", "/files/note", b"kept")
    rig.runs.add(await rig.ask(report, "GET", "/run"))
    handle = await stopped_and_started(rig, order, handle)
    if Capability.PAUSE in rig.kind.capabilities:
        await rig.backend.pause(handle)
        handle = await stopped_and_started(rig, order, handle)
    await rig.backend.delete(handle)
    await expect_error(Conflict, rig.backend.stop(handle), "stop after delete")


async def _hibernated(rig: Rig, handle: Handle) -> None:
    """Hibernate a sandbox, if possible, and check that its state is reported truthfully."""
    await rig.backend.pause(handle)
    for _ in range(2):
        await rig.backend.hibernate(handle)
        seen = await rig.backend.inspect(handle)
        is_said = seen.phase is Phase.PAUSED and seen.paused_as is not PausedAs.STOPPED
        expect(is_said, f"after hibernate it is {seen.phase} as {seen.paused_as}")
        is_on_disk = seen.paused_as is PausedAs.ON_DISK
        why_not = rig.backend.why_no_hibernate()
        said = f"it is said to be {seen.paused_as}, although {why_not or 'it can be on disk'}"
        expect(is_on_disk is not bool(why_not), said)


@check(needs(Capability.EXECUTE))
async def execute_gives_code_streams_and_environment(rig: Rig) -> None:
    """Check that execute uses the sandbox's environment, and reports what cannot run."""
    handle, _ = await rig.run(rig.order(env={"KIT_OWN": "own"}))
    script = 'echo "$KIT_OWN $KIT_GIVEN"; echo problem >&2; exit 3'
    result = await rig.sh(handle, script, env={"KIT_GIVEN": "given"}, max_output=1000)
    expect(result.exit_code == 3, f"the exit code is {result.exit_code}, not 3")  # noqa: PLR2004
    expect(result.stdout == b"own given\n", f"stdout is {result.stdout!r}")
    expect(result.stderr == b"problem\n", f"stderr is {result.stderr!r}")
    expect(not (result.truncated or result.timed_out), "it claims to have been cut short")
    result = await rig.sh(handle, "head -c 100000 /dev/zero", max_output=100)
    expect(len(result.stdout) <= 100, "the output is longer than asked for")  # noqa: PLR2004
    expect(result.truncated, "it does not say that the output was cut")
    result = await rig.backend.execute(
        handle, ["no-such-command"], env={}, time_limit=rig.options.time_limit, max_output=1000
    )
    expect(result.exit_code not in (0, None), "a command that does not exist has no exit code")


@check(needs(Capability.EXECUTE))
async def execute_ends_the_command_and_its_children_in_time(rig: Rig) -> None:
    """Check that nothing of a command is left after the time limit, daemons included."""
    handle, _ = await rig.run()
    here = 'cd "${TMPDIR:-/tmp}"'
    beat = "while :; do echo x >> kit-$KIT_NAME-$1; sleep 0.05; done"
    script = (
        f"{here}; beat() {{ {beat}; }}; beat child & (setsid sh -c '{beat}' sh daemon &) ; wait"
    )
    result = await rig.sh(handle, script, time_limit=0.5)
    expect(result.timed_out, "it does not say that time was up")
    expect(result.exit_code is None, "a command that was stopped has an exit code")
    count = f"{here}; sleep 0.2; cat kit-$KIT_NAME-* | wc -l"
    before, after = await rig.sh(handle, count), await rig.sh(handle, count)
    await rig.sh(handle, f"{here}; rm -f kit-$KIT_NAME-*")
    expect(int(before.stdout) > 0, "the command never ran")
    expect(before.stdout == after.stdout, "what the command started still runs")


@check(needs(Capability.LOGS))
async def logs_are_in_order_and_end_at_delete(rig: Rig) -> None:
    """Check that the last lines come oldest first, and that following ends."""
    handle, _ = await rig.run(rig.order(env={"KIT_LINES": "30"}))

    async def tail(count: int) -> list[str]:
        return [line.text async for line in rig.backend.logs(handle, tail=count, follow=False)]

    async def are_all_there() -> bool:
        return len(await tail(100)) == 30  # noqa: PLR2004

    await rig.until(are_all_there)
    expect(await tail(10) == [f"line {number}" for number in range(20, 30)], "not the last ten")
    followed: list[str] = []

    async def follow() -> None:
        lines = rig.backend.logs(handle, tail=5, follow=True)
        followed.extend([line.text async for line in lines])

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        await asyncio.sleep(0.1)
        await rig.backend.delete(handle)
    expect(followed[:5] == [f"line {number}" for number in range(25, 30)], "not the last five")
