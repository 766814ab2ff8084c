"""Detection of a model that refuses the first request of a run.

An invalid key or an unknown model shows only in the run, a tenth of a second after the agent
server has accepted the start. Waiting briefly for the first response makes it a failed start with a
cause.
"""

from collections.abc import Sequence
from shlex import quote
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer, decode_events
from agentsvc.base import (
    AgentUnavailable,
    Secret,
    StartRefused,
    monotonic,
    reason_of,
    without_secrets,
)
from agentsvc.conversations.model_health import WatchedModel
from agentsvc.domain import ExecutionStatus, Llm
from agentsvc.models import host_of
from agentsvc.plugin.egress import split_port

_FIRST_POLL_SECONDS: Final = 0.05
_LAST_POLL_SECONDS: Final = 0.4
_RESPONSES: Final = frozenset({"ActionEvent", "ObservationEvent"})

_REMEDIES: Final = {
    "auth": "Check `llm_api_key` in the settings",
    "config": "Check `llm_model` and `llm_base_url` in the settings",
}

_OTHER_REMEDY: Final = "Start the conversation again, or with another model"

_UNREACHABLE: Final = "Check `llm_base_url` in the settings, and that the model server is running"

_NO_LISTENER: Final = 9
_PROBE_SECONDS: Final = 8.0
_PROBE: Final = """
if [ -n "$HTTP_PROXY$HTTPS_PROXY$ALL_PROXY$http_proxy$https_proxy$all_proxy" ]; then exit 0; fi
command -v timeout >/dev/null && command -v bash >/dev/null || exit 0
timeout 4 bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash {host} {port} || exit {nobody}
"""

_UNDECIDED: Final = frozenset(
    {ExecutionStatus.IDLE, ExecutionStatus.RUNNING, ExecutionStatus.ERROR}
)


class _Classification(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    source: str = ""
    code: str = ""
    detail: str = ""
    classification: _Classification | None = None


_event = msgspec.json.Decoder(_Event)


async def watch_first_answer(
    agent: AgentServer,
    conversation_id: str,
    time_limit: float,
    watched: WatchedModel,
    *,
    behind: str = "",
    hide: Sequence[Secret] = (),
) -> bool:
    """Wait for the model's first response; return whether it came within the time limit.

    Events up to the id `behind` are ignored: they are the copied history of a fork.
    Raises StartRefused if the model cannot be reached or the run fails before the first response;
    its message has no values of `hide`. Raises AgentUnavailable if the agent server has lost the
    conversation.
    """
    end = monotonic() + time_limit
    pause = _FIRST_POLL_SECONDS
    while monotonic() < end:
        await watched.wait(pause)
        if watched.is_good:
            return True
        if watched.trouble:
            raise _unreachable(watched.trouble)
        pause = min(pause * 1.5, _LAST_POLL_SECONDS)
        info = await agent.find_conversation(conversation_id)
        if info is None:
            raise AgentUnavailable("The agent server has lost the conversation")
        if info.execution_status not in _UNDECIDED:
            return True
        found = await _find_response(agent, conversation_id, behind, end)
        if found is not None and _is_response(found):
            return True
        if found is not None and info.execution_status == ExecutionStatus.ERROR:
            raise StartRefused(_explain(found, hide))
    return False


async def check_address(agent: AgentServer, model: Llm) -> None:
    """Raise StartRefused if nothing listens at a model's own base URL, seen from the sandbox.

    Skipped if the sandbox uses a proxy or lacks `bash` or `timeout`, or without a base URL or port.
    """
    host, port = split_port(host_of(model.model or "", model.base_url))
    if not model.base_url or port is None:
        return
    script = _PROBE.format(host=quote(host.strip("[]")), port=port, nobody=_NO_LISTENER)
    result = await agent.run_command(script, time_limit=_PROBE_SECONDS)
    if result.exit_code == _NO_LISTENER:
        raise _unreachable(f"nothing answers the sandbox at port {port} of {host}")


def _unreachable(trouble: str) -> StartRefused:
    return StartRefused(reason_of(f"The language model cannot be reached: {trouble}", _UNREACHABLE))


async def _find_response(
    agent: AgentServer, conversation_id: str, behind: str, end: float
) -> _Event | None:
    """Return the first response, otherwise the last error, in the events read until `end`."""
    error = None
    async for page in agent.event_pages(conversation_id, first=behind):
        for event in decode_events(_event, page):
            if _is_response(event):
                return event
            if event.kind == "ConversationErrorEvent":
                error = event
        if monotonic() >= end:
            break
    return error


def _is_response(event: _Event) -> bool:
    is_answer = event.kind == "MessageEvent" and event.source == "agent"
    return is_answer or event.kind in _RESPONSES


def _explain(error: _Event, hide: Sequence[Secret]) -> str:
    kind = error.classification.kind if error.classification else ""
    remedy = _REMEDIES.get(kind, "")
    if not remedy and "auth" in error.code.lower():
        remedy = _REMEDIES["auth"]
    text = f"The language model refused the first request ({error.code}): {error.detail}"
    return reason_of(without_secrets(text, hide), remedy or _OTHER_REMEDY)
