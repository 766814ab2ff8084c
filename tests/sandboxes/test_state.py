import pytest

from agentsvc.base.values import new_key, now
from agentsvc.plugin.backend import Endpoint, PausedAs, Phase, Spec
from agentsvc.sandboxes.state import (
    Action,
    Sandbox,
    SandboxStatus,
    Target,
    holds_room,
    is_settled,
    next_action,
    status_of,
)

RUNNING, RESTARTED, PAUSED, RECLAIMED, HIBERNATED, STOPPED, DELETED = Target
STARTING, UP, FROZEN, FAILED, GONE = Phase


@pytest.mark.parametrize(
    ("target", "phase", "action"),
    [
        (RUNNING, None, Action.CREATE),
        (RUNNING, STARTING, Action.LOOK),
        (RUNNING, UP, Action.LOOK),
        (RUNNING, FROZEN, Action.RESUME),
        (RUNNING, FAILED, Action.REST),
        (RUNNING, GONE, Action.REST),
        (RESTARTED, None, Action.RESTART),
        (RESTARTED, STARTING, Action.RESTART),
        (RESTARTED, FAILED, Action.RESTART),
        (RESTARTED, GONE, Action.REST),
        (PAUSED, None, Action.CREATE),
        (PAUSED, STARTING, Action.LOOK),
        (PAUSED, UP, Action.PAUSE),
        (PAUSED, FROZEN, Action.LOOK),
        (PAUSED, FAILED, Action.REST),
        (PAUSED, GONE, Action.REST),
        (STOPPED, None, Action.CREATE),
        (STOPPED, STARTING, Action.LOOK),
        (STOPPED, UP, Action.STOP),
        (STOPPED, FROZEN, Action.STOP),
        (STOPPED, FAILED, Action.REST),
        (DELETED, None, Action.DELETE),
        (DELETED, UP, Action.DELETE),
        (DELETED, GONE, Action.DELETE),
    ],
)
def test_the_next_action_follows_from_target_and_phase(
    target: Target, phase: Phase | None, action: Action
) -> None:
    assert next_action(target, phase, has_handle=True) is action


@pytest.mark.parametrize(
    ("target", "phase", "action"),
    [
        (RUNNING, None, Action.CREATE),
        (PAUSED, None, Action.CREATE),
        (RUNNING, FAILED, Action.REST),
        (RESTARTED, FAILED, Action.REST),
        (DELETED, None, Action.SCAN_AND_CLOSE),
        (DELETED, FAILED, Action.SCAN_AND_CLOSE),
    ],
)
def test_without_a_handle_it_is_made_or_looked_for(
    target: Target, phase: Phase | None, action: Action
) -> None:
    assert next_action(target, phase, has_handle=False) is action


@pytest.mark.parametrize(
    ("target", "phase", "status"),
    [
        (RUNNING, None, SandboxStatus.STARTING),
        (RUNNING, STARTING, SandboxStatus.STARTING),
        (RUNNING, UP, SandboxStatus.RUNNING),
        (RUNNING, FROZEN, SandboxStatus.STARTING),
        (PAUSED, FROZEN, SandboxStatus.PAUSED),
        (PAUSED, UP, SandboxStatus.RUNNING),
        (RUNNING, FAILED, SandboxStatus.ERROR),
        (RESTARTED, FAILED, SandboxStatus.STARTING),
        (RUNNING, GONE, SandboxStatus.MISSING),
        (RESTARTED, GONE, SandboxStatus.MISSING),
    ],
)
def test_clients_are_told_one_of_five_states(
    target: Target, phase: Phase | None, status: SandboxStatus
) -> None:
    assert status_of(target, phase) is status


@pytest.mark.parametrize(
    ("target", "phase", "settled"),
    [
        (RUNNING, UP, True),
        (RUNNING, FROZEN, False),
        (RUNNING, STARTING, False),
        (RUNNING, None, False),
        (PAUSED, FROZEN, True),
        (PAUSED, UP, False),
        (RUNNING, FAILED, True),
        (PAUSED, GONE, True),
        (STOPPED, UP, False),
        (STOPPED, FROZEN, False),
        (STOPPED, FAILED, True),
        (RESTARTED, FAILED, False),
        (DELETED, GONE, False),
        (DELETED, UP, False),
    ],
)
def test_a_sandbox_is_settled_when_nothing_is_left_to_do(
    target: Target, phase: Phase | None, *, settled: bool
) -> None:
    assert is_settled(target, phase) is settled


def test_a_stopped_sandbox_is_not_stopped_again() -> None:
    assert next_action(STOPPED, FROZEN, has_handle=True, paused_as=PausedAs.STOPPED) is Action.LOOK
    assert is_settled(STOPPED, FROZEN, paused_as=PausedAs.STOPPED)
    assert is_settled(PAUSED, FROZEN, paused_as=PausedAs.STOPPED)
    # It was told to stop, and goes on.
    assert not is_settled(STOPPED, UP, paused_as=PausedAs.STOPPED)


@pytest.mark.parametrize(
    ("phase", "paused_as", "action"),
    [
        (UP, None, Action.PAUSE),
        (FROZEN, PausedAs.FROZEN, Action.RECLAIM),
        (FROZEN, PausedAs.RECLAIMED, Action.LOOK),
        (FROZEN, PausedAs.STOPPED, Action.LOOK),
    ],
)
def test_a_sandbox_is_frozen_before_it_is_reclaimed(
    phase: Phase, paused_as: PausedAs | None, action: Action
) -> None:
    seen = next_action(RECLAIMED, phase, has_handle=True, paused_as=paused_as)
    assert seen is action
    is_done = is_settled(RECLAIMED, phase, paused_as=paused_as)
    assert is_done is (action is Action.LOOK)


@pytest.mark.parametrize(
    ("phase", "paused_as", "action"),
    [
        (UP, None, Action.PAUSE),
        (FROZEN, PausedAs.FROZEN, Action.HIBERNATE),
        (FROZEN, PausedAs.RECLAIMED, Action.HIBERNATE),
        (FROZEN, PausedAs.ON_DISK, Action.LOOK),
        (FROZEN, PausedAs.STOPPED, Action.LOOK),
    ],
)
def test_a_sandbox_is_frozen_before_it_goes_to_disk(
    phase: Phase, paused_as: PausedAs | None, action: Action
) -> None:
    seen = next_action(HIBERNATED, phase, has_handle=True, paused_as=paused_as)
    assert seen is action
    is_done = is_settled(HIBERNATED, phase, paused_as=paused_as)
    assert is_done is (action is Action.LOOK)


def sandbox(target: Target, phase: Phase | None, *ports: str) -> Sandbox:
    moment = now()
    return Sandbox(
        id="0f" * 16,
        user_id="ann",
        spec_id="small",
        spec=Spec(id="small"),
        backend="fake",
        target=target,
        phase=phase,
        reason="",
        exit_code=None,
        handle=None,
        endpoints=tuple(
            Endpoint(name=name, port=number, url=f"http://127.0.0.1:{number}")
            for number, name in enumerate(ports, 8000)
        ),
        working_dir="/work",
        facts={},
        session_key=new_key(),
        ready_by=moment,
        created_at=moment,
        updated_at=moment,
    )


@pytest.mark.parametrize(
    ("target", "phase", "may_call"),
    [
        (RUNNING, None, True),
        (RUNNING, STARTING, True),
        (RUNNING, UP, True),
        (RUNNING, FROZEN, True),
        (RUNNING, FAILED, False),
        (RUNNING, GONE, False),
        (RESTARTED, FAILED, True),
        (PAUSED, UP, True),
        (PAUSED, FROZEN, False),
        (DELETED, UP, False),
        (DELETED, STARTING, False),
    ],
)
def test_a_sandbox_may_call_while_it_runs_or_is_about_to(
    target: Target, phase: Phase | None, *, may_call: bool
) -> None:
    assert sandbox(target, phase).may_call is may_call


def test_the_agent_is_at_the_port_of_its_name_while_the_sandbox_runs() -> None:
    assert sandbox(RUNNING, UP, "vscode", "agent").agent_url == "http://127.0.0.1:8001"
    assert sandbox(RUNNING, UP, "vscode").agent_url is None
    assert sandbox(RUNNING, STARTING, "agent").agent_url is None
    assert sandbox(PAUSED, FROZEN, "agent").agent_url is None


@pytest.mark.parametrize(
    ("target", "phase", "holds"),
    [
        (RUNNING, None, True),
        (RUNNING, STARTING, True),
        (RUNNING, FROZEN, True),
        (RUNNING, FAILED, False),
        (RUNNING, GONE, False),
        (RESTARTED, FAILED, True),
        (RESTARTED, GONE, False),
        (PAUSED, UP, True),
        (PAUSED, FROZEN, False),
        (DELETED, UP, True),
        (DELETED, FROZEN, False),
    ],
)
def test_a_sandbox_holds_room_while_it_runs_or_is_about_to(
    target: Target, phase: Phase | None, holds: bool
) -> None:
    assert holds_room(sandbox(target, phase)) is holds
