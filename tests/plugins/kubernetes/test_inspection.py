"""What the kubernetes backend makes of what a cluster says of pods, and of its refusals."""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base.errors import (
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
)
from agentsvc.base.values import now
from agentsvc.plugin.backend import NOT_CALLING, Cause, Isolation, PausedAs, Phase
from tests.plugin_loading import part

if TYPE_CHECKING:
    from kubernetes import commands, failures, inspection, logs
else:
    commands, failures = part("kubernetes.commands"), part("kubernetes.failures")
    logs, inspection = part("kubernetes.logs"), part("kubernetes.inspection")

type Json = dict[str, Any]

STARTING, FAILED, RUNNING = Phase.STARTING, Phase.FAILED, Phase.RUNNING
IMAGE = "registry.example/agent:9"
DENIED = (
    "Error response from daemon: pull access denied for agent, repository does not exist or may"
    " require 'docker login': denied: requested access to the resource is denied"
)
NO_NAME = (
    'rpc error: code = Unknown desc = Error response from daemon: Get "https://registry.example/v2/":'
    " dial tcp: lookup registry.example: no such host"
)


def pending(*conditions: Json, **more: Any) -> Json:
    return {"phase": "Pending", "conditions": list(conditions), **more}


def unscheduled(message: str, reason: str = "Unschedulable") -> Json:
    return pending(
        {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    )


def waiting(
    reason: str, message: str = "", *, name: str = "sandbox", is_first: bool = False
) -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": name, "image": IMAGE, "ready": False, "state": state}
    return pending(**{"initContainerStatuses" if is_first else "containerStatuses": [container]})


def terminated(code: int, reason: str = "Error", message: str = "", **more: Any) -> Json:
    ended = {"exitCode": code, "reason": reason, "message": message}
    container = {"name": "sandbox", "ready": False, "state": {"terminated": ended}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container], **more}


def running(ready: str = "True", containers_ready: str = "True", *, is_ready: bool = True) -> Json:
    return {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": ready},
            {"type": "ContainersReady", "status": containers_ready},
        ],
        "containerStatuses": [
            {
                "name": "sandbox",
                "ready": is_ready,
                "state": {"running": {"startedAt": "2026-11-22T10:00:00Z"}},
            }
        ],
    }


def failed(reason: str, message: str = "") -> Json:
    return {"phase": "Failed", "reason": reason, "message": message}


UNPREPARED = {
    "phase": "Failed",
    "initContainerStatuses": [
        {
            "name": "prepare",
            "state": {
                "terminated": {
                    "exitCode": 1,
                    "reason": "Error",
                    "message": "mkdir: cannot create directory '/workspace/project': Permission denied",
                }
            },
        }
    ],
}

STATUSES: dict[str, tuple[Json, Phase, Cause | None, str]] = {
    "nothing yet": ({}, STARTING, None, "is being started"),
    "no node": (
        unscheduled("0/2 nodes are available: 2 Insufficient memory."),
        STARTING,
        None,
        "no node takes it: .*memory_request.*Insufficient memory",
    ),
    "no volume": (
        unscheduled("0/2 nodes are available: 2 pod has unbound immediate PersistentVolumeClaims."),
        STARTING,
        None,
        "storage class",
    ),
    "held back": (unscheduled("gated", "SchedulingGated"), STARTING, None, "waits for a node"),
    "creating": (waiting("ContainerCreating"), STARTING, None, "is being started"),
    "pulling is refused": (
        waiting("ErrImagePull", DENIED),
        FAILED,
        Cause.NOT_STARTED,
        "image_pull_secrets",
    ),
    "pulling finds no name": (waiting("ErrImagePull", NO_NAME), STARTING, None, "registry cannot"),
    "no tag": (
        waiting("ErrImagePull", "manifest for agent:9 not found: manifest unknown"),
        FAILED,
        Cause.NOT_STARTED,
        "no such image or tag",
    ),
    "another kind of machine": (
        waiting(
            "ErrImagePull", "no matching manifest for linux/arm64 in the manifest list entries"
        ),
        FAILED,
        Cause.NOT_STARTED,
        "kind of machine",
    ),
    "too many pulls": (
        waiting("ErrImagePull", "toomanyrequests: You have reached your pull rate limit"),
        STARTING,
        None,
        "no more images for now",
    ),
    "a node's disk is full": (
        waiting("ErrImagePull", "write /var/lib: no space left on device"),
        STARTING,
        None,
        "disk is full",
    ),
    "backing off": (
        waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'),
        STARTING,
        None,
        "look at the registry",
    ),
    "backing off, and saying why": (
        waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {DENIED}'),
        FAILED,
        Cause.NOT_STARTED,
        "needs a login",
    ),
    "the first container's image": (
        waiting("ErrImagePull", DENIED, name="prepare", is_first=True),
        FAILED,
        Cause.NOT_STARTED,
        "needs a login",
    ),
    "no image name": (
        waiting("InvalidImageName", "couldn't parse image reference"),
        FAILED,
        Cause.NOT_STARTED,
        "is no name of an image",
    ),
    "never pulled": (
        waiting("ErrImageNeverPull"),
        FAILED,
        Cause.NOT_STARTED,
        "`image_pull_policy` is `Never`",
    ),
    "not to be configured": (
        waiting("CreateContainerConfigError", 'secret "x" not found'),
        FAILED,
        Cause.NOT_STARTED,
        'cannot be made: secret "x"',
    ),
    "crashing": (waiting("CrashLoopBackOff", "back-off 10s"), FAILED, Cause.EXITED, "keeps ending"),
    "a neighbour crashes": (
        waiting("CrashLoopBackOff", "back-off 10s", name="mesh"),
        FAILED,
        Cause.NOT_STARTED,
        "the container `mesh`",
    ),
    "running": (running(), RUNNING, None, ""),
    "not ready": (
        running("False", "False", is_ready=False),
        STARTING,
        None,
        "ports do not answer yet",
    ),
    "its node is lost": (running("False"), STARTING, None, "node does not answer"),
    "its node is lost, as of old": (
        {**running(), "reason": "NodeLost"},
        STARTING,
        None,
        "node does not answer",
    ),
    "out of memory": (
        terminated(137, "OOMKilled"),
        FAILED,
        Cause.OUT_OF_MEMORY,
        "raise `memory_bytes`",
    ),
    "ended": (terminated(3), FAILED, Cause.EXITED, "exit code 3"),
    "ended well": (terminated(0, "Completed"), FAILED, Cause.EXITED, "exit code 0"),
    "killed": (terminated(137), FAILED, Cause.LOST, "stopped from outside"),
    "crashed": (terminated(139), FAILED, Cause.SIGNALLED, "signal 11"),
    "no command": (
        terminated(127, "ContainerCannotRun", "exec: no-such: not found"),
        FAILED,
        Cause.NOT_STARTED,
        "cannot be run in its image: exec",
    ),
    "no command in a shell": (terminated(127), FAILED, Cause.NOT_STARTED, "exit code 127"),
    "its node was started anew": (
        terminated(137, "ContainerStatusUnknown"),
        FAILED,
        Cause.HOST_RESTARTED,
        "while its node was away",
    ),
    "evicted for memory": (
        failed("Evicted", "The node was low on resource: memory. Container sandbox was using 1Gi"),
        FAILED,
        Cause.LOST,
        "ran short of memory",
    ),
    "evicted for disk": (
        failed("Evicted", "Pod ephemeral local storage usage exceeds the total limit"),
        FAILED,
        Cause.DISK_FULL,
        "no disk left",
    ),
    "put off": (failed("Preempting"), FAILED, Cause.LOST, "priority_class"),
    "shut down": (failed("Shutdown"), FAILED, Cause.HOST_RESTARTED, "shut down"),
    "given up": (failed("NodeLost"), FAILED, Cause.LOST, "started again on another"),
    "not taken": (
        failed("OutOfmemory", "Node didn't have enough resource: memory"),
        FAILED,
        Cause.NOT_STARTED,
        "did not take it",
    ),
    "not prepared": (UNPREPARED, FAILED, Cause.NOT_STARTED, "Permission denied"),
    "for no reason": (failed(""), FAILED, Cause.LOST, "does not say why"),
}


@pytest.mark.parametrize("status", STATUSES)
def test_each_misfortune_has_its_words_and_its_cause(status: str) -> None:
    found, phase, cause, words = STATUSES[status]
    report = inspection.to_report({"metadata": {}, "status": found})
    assert (report.phase, report.cause) == (phase, cause)
    assert re.search(words, report.reason), report.reason
    assert "\n" not in report.reason


def test_what_has_ended_tells_its_exit_code() -> None:
    report = inspection.to_report({"metadata": {}, "status": terminated(7)})
    assert report.exit_code == 7


def test_a_pod_that_is_being_removed_is_on_its_way() -> None:
    pod = {"metadata": {"deletionTimestamp": "2026-11-22T10:00:00Z"}, "status": running()}
    assert inspection.judge(pod).phase is STARTING
    assert not inspection.is_over(pod)
    assert inspection.has_begun(pod)
    # Some are told as failed before anything is known of their containers.
    assert inspection.judge({**pod, "status": {"phase": "Failed"}}).phase is STARTING


def test_a_report_says_what_the_pod_remembers() -> None:
    told = {
        "agentsvc/workdir": "/workspace/project",
        "agentsvc/limits": "cpus,memory_bytes,pids",
        "agentsvc/callback": "yes",
        "agentsvc/ports": "agent=8000,web=8100,bad",
        "agentsvc/awaited": "agent,web",
    }
    spec = {"nodeName": "node1", "runtimeClassName": "gvisor"}
    pod = {"metadata": {"annotations": told}, "spec": spec, "status": running()}
    report = inspection.to_report(pod)
    assert report.working_dir == "/workspace/project"
    assert report.enforced == ("cpus", "memory_bytes")
    assert report.isolation is Isolation.GVISOR
    assert report.facts == {"node": "node1"}
    assert inspection.ports_of(pod) == {"agent": 8000, "web": 8100}
    assert inspection.awaited_of(pod) == ["agent", "web"]
    assert inspection.to_report({"metadata": {}, "status": running()}).facts == NOT_CALLING
    assert inspection.address_of({"status": {"podIP": "fd00::2"}}) == "[fd00::2]"


def test_what_is_left_without_a_pod_was_paused_or_is_lost() -> None:
    paused = inspection.without_pod(is_paused=True)
    assert (paused.phase, paused.paused_as) == (Phase.PAUSED, PausedAs.STOPPED)
    lost = inspection.without_pod(is_paused=False)
    assert (lost.phase, lost.cause) == (FAILED, Cause.LOST)


def test_the_last_complaint_about_a_pod_tells_why_it_waits() -> None:
    events = [
        {"type": "Normal", "message": "Pulling image", "lastTimestamp": "2026-11-22T10:00:09Z"},
        {
            "type": "Warning",
            "message": "Error: ErrImagePull",
            "lastTimestamp": "2026-11-22T10:00:08Z",
        },
        {
            "type": "Warning",
            "message": f'Failed to pull image "{IMAGE}": {DENIED}',
            "lastTimestamp": "2026-11-22T10:00:01Z",
        },
    ]
    warning = inspection.warning_of(events)
    assert "pull access denied" in warning
    pod = {"metadata": {}, "status": waiting("ImagePullBackOff", "Back-off pulling image")}
    assert inspection.judge(pod, warning).phase is FAILED
    mount = inspection.warning_of([{"type": "Warning", "message": "MountVolume failed: timeout"}])
    creating = {"metadata": {}, "status": waiting("ContainerCreating")}
    assert (
        inspection.judge(creating, mount).reason
        == "its pod is being started: MountVolume failed: timeout"
    )
    assert inspection.warning_of([]) == ""


def test_only_what_has_waited_for_long_is_asked_about() -> None:
    long_ago = {"creationTimestamp": (now() - timedelta(minutes=1)).isoformat()}
    assert inspection.is_stuck({"metadata": long_ago, "status": waiting("ContainerCreating")}, 5)
    assert not inspection.is_stuck({"metadata": long_ago, "status": running()}, 5)
    just_now = {"creationTimestamp": now().isoformat()}
    assert not inspection.is_stuck({"metadata": just_now, "status": pending()}, 5)


FORBIDDEN = 'pods "x" is forbidden: '
REFUSALS: list[tuple[int, str, type[AgentsvcError], str]] = [
    (403, f"{FORBIDDEN}exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9", CapacityExceeded, "quota is used up"),
    (403, f"{FORBIDDEN}failed quota: q: must specify limits.memory", OrderRejected, "wants limits"),
    (403, f'{FORBIDDEN}violates PodSecurity "restricted:latest"', OrderRejected, "security standard"),
    (403, f"{FORBIDDEN}maximum memory usage per Container is 1Gi, but limit is 2Gi", OrderRejected, "limit range"),
    (403, f"{FORBIDDEN}unable to create new content in namespace a because it is being terminated", BackendUnavailable, "being deleted"),
    (403, f'{FORBIDDEN}pod rejected: RuntimeClass "gvisor" not found', OrderRejected, "lacks what"),
    (403, f'{FORBIDDEN}error looking up service account a/b: serviceaccount "b" not found', OrderRejected, "lacks what"),
    (403, 'pods is forbidden: User "app" cannot create resource "pods" in API group ""', BackendUnavailable, "apply the Role"),
    (403, "admission webhook \"rules.example\" denied the request: no", OrderRejected, "A rule of the cluster"),
    (403, "because", OrderRejected, "forbids it"),
    (401, "Unauthorized", BackendUnavailable, "credentials"),
    (404, 'namespaces "agents" not found', BackendUnavailable, "does not have the namespace"),
    (404, 'storageclasses "x" not found', OrderRejected, "lacks what"),
    (409, 'Operation cannot be fulfilled on resourcequotas "q"', BackendUnavailable, "being counted"),
    (409, "the object has been modified", Conflict, "refuses"),
    (410, "too old resource version", BackendUnavailable, "has forgotten"),
    (422, "spec.containers[0].image: Required value", OrderRejected, "refuses the order"),
    (429, "too many requests", BackendUnavailable, "failed"),
    (500, "etcdserver: request timed out", BackendUnavailable, "etcdserver"),
    (503, "", BackendUnavailable, "no reason given"),
]  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: f"{refusal[0]} {refusal[3]}")
def test_each_refusal_is_the_error_that_fits(
    refusal: tuple[int, str, type[AgentsvcError], str],
) -> None:
    status, message, kind, words = refusal
    found = failures.from_api(status, {"kind": "Status", "message": message})
    assert isinstance(found, kind)
    assert words in found.message


def test_what_stands_before_the_api_server_is_not_believed() -> None:
    found = failures.from_api(502, "<html>Bad\nGateway</html>")
    assert isinstance(found, BackendUnavailable)
    assert "\n" not in found.message


def test_the_end_of_a_command_is_read() -> None:
    code = b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}'
    assert commands.exit_code_of(code) == 3
    assert commands.exit_code_of(b'{"status":"Success"}') == 0
    for said in (b"{", b'{"status":"Failure","message":"container not found"}', b"[]"):
        with pytest.raises(Conflict):
            commands.exit_code_of(said)


def test_lines_of_a_log_have_their_times() -> None:
    line = logs.to_line(b"2026-11-22T10:00:00.123456789Z a line\r\n")
    assert (line.at.isoformat(), line.text) == ("2026-11-22T10:00:00.123456+00:00", "a line")
    assert logs.to_line(b"no time").at.year == 1970
