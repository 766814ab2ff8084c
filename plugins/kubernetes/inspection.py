"""Derives a sandbox's report from its pod's status. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from agentsvc.base import now, parse_time
from agentsvc.plugin import NOT_CALLING, Cause, PausedAs, Phase, Report

from . import names, plan
from .failures import from_pull, one_line
from .objects import CONTAINER, RESTORE

type Json = dict[str, Any]

_SIGNAL: Final = 128
_KILLED: Final = 137
_TERMINATED: Final = 143
_UNKNOWN: Final = 255
_NO_COMMAND: Final = (126, 127)
_PULLING: Final = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_NOT_MADE: Final = "its container cannot be made: {message}"
_NEVER: Final = {
    "InvalidImageName": "`{image}` is no name of an image",
    "ErrImageNeverPull": (
        "its node has no image `{image}`, and `image_pull_policy` is `Never`: load it there"
    ),
    "CreateContainerConfigError": _NOT_MADE,
    "CreateContainerError": _NOT_MADE,
    "RunContainerError": _NOT_MADE,
}
_CANNOT_RUN: Final = ("ContainerCannotRun", "StartError")
_FAILED_PHASES: Final = ("Failed", "Succeeded")
_DISK: Final = re.compile(
    r"ephemeral.(local )?storage|emptydir|disk ?pressure|nodefs|imagefs|inodes", re.IGNORECASE
)
_MEMORY: Final = re.compile(r"memory", re.IGNORECASE)
_TOO_FULL: Final = re.compile(r"OutOf[a-z]+|NodeAffinity|UnexpectedAdmissionError|TopologyAffinity")
_OOM: Final = "it wanted more memory than it may use, and was killed; raise `memory_bytes`"


_SHUT: Final = (Cause.HOST_RESTARTED, "its node was shut down; it can be started again")
_PUT_OFF: Final = (
    Cause.LOST,
    "it was put off its node for something more important; start it again, or set `priority_class`",
)
_GIVEN_UP: Final = (Cause.LOST, "its node was lost; it can be started again on another")
_ENDS: Final = {
    "Shutdown": _SHUT,
    "NodeShutdown": _SHUT,
    "Terminated": _SHUT,
    "Preempting": _PUT_OFF,
    "Preempted": _PUT_OFF,
    "NodeLost": _GIVEN_UP,
    "DeletionByTaintManager": _GIVEN_UP,
    "DeadlineExceeded": (Cause.LOST, "the cluster ended it at a deadline this server never set"),
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The phase of a sandbox derived from its pod's status, with reason and cause."""

    phase: Phase
    reason: str = ""
    cause: Cause | None = None
    exit_code: int | None = None


def to_report(pod: Json, warning: str = "") -> Report:
    """Return the report of a pod, without endpoints.

    `warning` is the last warning among the pod's events.
    """
    told = names.annotations_of(pod)
    verdict = judge(pod, warning)
    limits = told.get(names.LIMITS, "").split(",")
    node = (pod.get("spec") or {}).get("nodeName")
    facts = dict(NOT_CALLING) if told.get(names.CALLBACK) != "yes" else {}
    return Report(
        phase=verdict.phase,
        reason=one_line(verdict.reason),
        cause=verdict.cause,
        exit_code=verdict.exit_code,
        working_dir=told.get(names.WORKDIR, ""),
        facts={**facts, **({"node": str(node)} if node else {})},
        isolation=plan.isolation_of((pod.get("spec") or {}).get("runtimeClassName") or ""),
        enforced=tuple(name for name in plan.LIMITS if name in limits),
    )


def without_pod(*, is_paused: bool) -> Report:
    """Return the report of a sandbox of which only the claim is left."""
    if is_paused:
        return Report(phase=Phase.PAUSED, paused_as=PausedAs.STOPPED)
    return Report(
        phase=Phase.FAILED,
        cause=Cause.LOST,
        reason="its pod was removed from the cluster; its files are there to go on from",
    )


def judge(pod: Json, warning: str = "") -> Verdict:
    """Return the verdict on a pod's status, with a reason that says what to do."""
    status = pod.get("status") or {}
    # While it is removed it may be told as failed before its containers are.
    if status.get("phase") in _FAILED_PHASES and not names.is_ending(pod):
        return _ended(status)
    if is_node_lost(pod):
        return _starting(
            "its node does not answer, so that nobody knows how it is; it goes on when the node is"
            " back, and can be started again elsewhere once the cluster has given the node up"
        )
    if names.is_ending(pod):
        return _starting("its pod is being removed")
    found = _unscheduled(status)
    for container in [*_statuses(status, "initContainerStatuses"), *_statuses(status)]:
        found = found or _waiting(container, warning)
    return found or _begun(status, warning)


def is_stuck(pod: Json, seconds: float) -> bool:
    """Return whether a pod has been pending for so long that its events may explain why."""
    status = pod.get("status") or {}
    states = [one.get("state") or {} for one in _statuses(status)]
    began = parse_time(str((pod.get("metadata") or {}).get("creationTimestamp")))
    is_waiting = status.get("phase") == "Pending" and not any("running" in one for one in states)
    return is_waiting and began is not None and (now() - began).total_seconds() > seconds


def warning_of(events: Iterable[Json]) -> str:
    """Return the last warning among events; warnings of failed image pulls take precedence."""
    found = [event for event in events if event.get("type") == "Warning"]
    found.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    messages = [str(event.get("message") or "") for event in found]
    pulls = [message for message in messages if message.startswith("Failed to pull image")]
    return one_line((pulls or messages or [""])[-1])


def _begun(status: Json, warning: str) -> Verdict:
    state = (_main(status) or {}).get("state") or {}
    if ended := state.get("terminated"):
        return _terminated(ended)
    if state.get("running") is None:
        return _starting(f"its pod is being started{f': {warning}' if warning else ''}")
    if not _is_true(status, "Ready"):
        return _starting("its ports do not answer yet")
    return Verdict(phase=Phase.RUNNING)


def is_node_lost(pod: Json) -> bool:
    """Return whether the cluster no longer receives a pod's status from its node."""
    status = pod.get("status") or {}
    if status.get("reason") == "NodeLost" or status.get("phase") == "Unknown":
        return True
    # The kubelet says both or neither; only the cluster takes back the one of them.
    containers = _statuses(status)
    is_well = bool(containers) and all(one.get("ready") for one in containers)
    is_taken_back = _is_true(status, "ContainersReady") and _condition(status, "Ready") == "False"
    return is_well and is_taken_back and not (pod.get("spec") or {}).get("readinessGates")


def has_begun(pod: Json) -> bool:
    """Return whether a pod's command runs, even if its ports do not answer yet."""
    return ((_main(pod.get("status") or {}) or {}).get("state") or {}).get("running") is not None


def is_over(pod: Json) -> bool:
    """Return whether a pod has failed and will not run again by itself."""
    return judge(pod).phase is Phase.FAILED


def ports_of(pod: Json) -> dict[str, int]:
    """Return a sandbox's port numbers by name, from the pod's annotation."""
    text = names.annotations_of(pod).get(names.PORTS, "")
    pairs = [part.partition("=") for part in text.split(",") if part]
    return {name: int(number) for name, _, number in pairs if number.isdigit()}


def awaited_of(pod: Json) -> list[str]:
    """Return the names of the ports that must answer; the kubelet probes the first of them."""
    text = names.annotations_of(pod).get(names.AWAITED, "")
    return [name for name in text.split(",") if name]


def address_of(pod: Json) -> str:
    """Return a pod's IP address as written in a URL; empty while it has none."""
    address = str((pod.get("status") or {}).get("podIP") or "")
    return f"[{address}]" if ":" in address else address


def _ended(status: Json) -> Verdict:
    reason, message = str(status.get("reason") or ""), one_line(str(status.get("message") or ""))
    if reason == "Evicted":
        return _evicted(message)
    if _TOO_FULL.fullmatch(reason):
        return _failed(
            Cause.NOT_STARTED, f"its node did not take it; start it again: {message or reason}"
        )
    if reason in _ENDS:
        return _failed(*_ENDS[reason])
    for container in _statuses(status, "initContainerStatuses"):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return _unprepared(str(container.get("name") or ""), ended)
    if ended := ((_main(status) or {}).get("state") or {}).get("terminated"):
        return _terminated(ended)
    return _lost(f"its pod has ended: {message or reason or 'the cluster does not say why'}")


def _evicted(message: str) -> Verdict:
    if _DISK.search(message):
        return _failed(
            Cause.DISK_FULL, f"it, or its node, had no disk left, and it was evicted: {message}"
        )
    what = "memory" if _MEMORY.search(message) else "something"
    return _lost(
        f"its node ran short of {what} and evicted it; set more aside by `memory_request`: {message}"
    )


def _terminated(ended: Mapping[str, Any]) -> Verdict:
    code, reason = int(ended.get("exitCode") or 0), str(ended.get("reason") or "")
    message = one_line(str(ended.get("message") or ""))
    if reason == "OOMKilled":
        cause, why = Cause.OUT_OF_MEMORY, _OOM
    elif reason in _CANNOT_RUN:
        cause, why = Cause.NOT_STARTED, f"its command cannot be run in its image: {message}"
    elif code in _NO_COMMAND:
        cause = Cause.NOT_STARTED
        why = f"its command cannot be run in its image, with exit code {code}"
    elif reason == "ContainerStatusUnknown":
        cause, why = Cause.HOST_RESTARTED, "it ended while its node was away"
    elif code in (_KILLED, _TERMINATED):
        cause, why = Cause.LOST, f"its container was stopped from outside, with exit code {code}"
    elif _SIGNAL < code < _UNKNOWN:
        cause, why = Cause.SIGNALLED, f"its command was ended by signal {code - _SIGNAL}"
    else:
        cause, why = Cause.EXITED, f"its command ended with exit code {code}"
    return Verdict(phase=Phase.FAILED, cause=cause, reason=why, exit_code=code)


def _unprepared(name: str, ended: Mapping[str, Any]) -> Verdict:
    if ended.get("reason") == "OOMKilled":
        return _failed(Cause.OUT_OF_MEMORY, _OOM)
    message = one_line(str(ended.get("message") or f"exit code {ended.get('exitCode')}"))
    what = (
        "its files cannot be put back"
        if name == RESTORE
        else "its working directory cannot be made in its claim"
    )
    return _failed(Cause.NOT_STARTED, f"{what}: {message}")


def _unscheduled(status: Json) -> Verdict | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        message = one_line(str(condition.get("message") or ""))
        if re.search(r"unbound .*PersistentVolumeClaim", message, re.IGNORECASE):
            return _starting(f"its claim has no volume yet; look at its storage class: {message}")
        if condition.get("reason") == "Unschedulable":
            return _starting(
                "no node takes it: add nodes, or ask for less by `cpu_request`,"
                f" `memory_request` and `node_selector`: {message}"
            )
        return _starting(f"it waits for a node: {message}")
    return None


def _waiting(container: Json, warning: str) -> Verdict | None:
    waits = (container.get("state") or {}).get("waiting") or {}
    reason, message = str(waits.get("reason") or ""), one_line(str(waits.get("message") or ""))
    image = container.get("image", "")
    if reason in _PULLING:
        # While it backs off, it does not say why.
        message = warning if warning and reason == "ImagePullBackOff" else message
        is_final, advice = from_pull(message)
        said = f"the image `{image}` cannot be fetched: {advice}: {message}"
        return _failed(Cause.NOT_STARTED, said) if is_final else _starting(said)
    if reason == "CrashLoopBackOff":
        return _looping(str(container.get("name") or ""), message)
    if words := _NEVER.get(reason):
        return _failed(Cause.NOT_STARTED, words.format(image=image, message=message or reason))
    return None


def _looping(name: str, message: str) -> Verdict:
    if name == CONTAINER:
        return _failed(Cause.EXITED, f"its command keeps ending: {message}")
    return _failed(
        Cause.NOT_STARTED,
        f"the container `{name}`, which is beside it, keeps ending; look at its log: {message}",
    )


def _main(status: Json) -> Json | None:
    return next((one for one in _statuses(status) if one.get("name") == CONTAINER), None)


def _statuses(status: Json, which: str = "containerStatuses") -> list[Json]:
    found: list[Json] = status.get(which) or []
    return found


def _condition(status: Json, kind: str) -> str:
    found = (one for one in status.get("conditions") or () if one.get("type") == kind)
    return next((str(one.get("status") or "") for one in found), "")


def _is_true(status: Json, kind: str) -> bool:
    return _condition(status, kind) == "True"


def _starting(reason: str) -> Verdict:
    return Verdict(phase=Phase.STARTING, reason=reason)


def _failed(cause: Cause, reason: str) -> Verdict:
    return Verdict(phase=Phase.FAILED, cause=cause, reason=reason)


def _lost(reason: str) -> Verdict:
    return _failed(Cause.LOST, reason)
