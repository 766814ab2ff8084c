"""Status, cost and tags of a conversation, derived from its events. Pure."""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from agentsvc.agentserver import MAX_MODEL_CHARS, ConversationStats, tokens_of
from agentsvc.base import copy_to, decode_or_none
from agentsvc.conversations.event_log import EventHead
from agentsvc.conversations.model import Conversation, Metrics, TokenUsage
from agentsvc.conversations.state_masking import STATE_KIND
from agentsvc.domain import ExecutionStatus
from agentsvc.models import MAX_USED

TAGS_MAX: Final = 64
"""The most tags that a conversation may have."""
_MAX_LOOKED_AT: Final = 1000
_TAG_NAME: Final = re.compile(r"[a-z0-9]{1,64}")
_TAG_VALUE_CHARS: Final = 256


class _FullState(msgspec.Struct, frozen=True, kw_only=True):
    execution_status: msgspec.Raw = msgspec.Raw(b"null")
    stats: msgspec.Raw = msgspec.Raw(b"null")


_full_state = msgspec.json.Decoder(_FullState)
_stats = msgspec.json.Decoder(ConversationStats)
_NAMED_OBJECT = re.compile(rb":\s*\{")
_status = msgspec.json.Decoder(str)


def learn(conversation: Conversation, heads: Iterable[EventHead]) -> Conversation:
    """Return the conversation updated by state events, which may come in any order."""
    for head in heads:
        if head.kind == STATE_KIND and head.value:
            status, stats = _read(head.key, bytes(head.value))
            conversation = learn_status(conversation, status, head.timestamp)
            if stats is not None:
                conversation = learn_stats(conversation, stats, head.timestamp)
    return conversation


def learn_status(conversation: Conversation, status: str | None, at: str) -> Conversation:
    """Return the conversation with a status, unless a later one is known or it is invalid."""
    if status is None or at < conversation.facts.status_at:
        return conversation
    try:
        known = ExecutionStatus(status)
    except ValueError:
        return conversation
    has_begun = known is not ExecutionStatus.IDLE and at > conversation.facts.run_asked_at
    run_asked_at = "" if has_begun else conversation.facts.run_asked_at
    conversation = msgspec.structs.replace(conversation, execution_status=known)
    return conversation.with_facts(status_at=at, run_asked_at=run_asked_at)


def learn_stats(conversation: Conversation, stats: ConversationStats, at: str) -> Conversation:
    """Return the conversation with these costs, unless later ones are known or they are invalid."""
    count = len(stats.usage_to_metrics)
    if at < conversation.facts.stats_at or not 0 < count <= _MAX_LOOKED_AT:
        # The first full state of a conversation has no costs yet and must not reset them.
        return conversation
    tokens = tokens_of(stats.usage_to_metrics.values())
    counts = (stats.accumulated_cost, *msgspec.structs.astuple(tokens))
    if not all(0 <= count <= MAX_USED for count in counts):
        return conversation
    names = (one.model_name[:MAX_MODEL_CHARS] for one in stats.usage_to_metrics.values())
    models = [name for name in names if name]
    metrics = Metrics(
        model_name=models[0] if models else "default",
        accumulated_cost=stats.accumulated_cost,
        max_budget_per_task=conversation.max_budget,
        accumulated_token_usage=copy_to(TokenUsage, tokens, model=models[0] if models else ""),
    )
    return msgspec.structs.replace(conversation, metrics=metrics).with_facts(stats_at=at)


def learn_tags(conversation: Conversation, tags: Mapping[str, str]) -> Conversation:
    """Return the conversation with the tags of an agent server merged into its own.

    The agent server's values win, other tags are kept; invalid tags, and those beyond `TAGS_MAX`,
    are ignored.
    """
    merged = dict(conversation.tags)
    for name, value in itertools.islice(tags.items(), _MAX_LOOKED_AT):
        fits = _TAG_NAME.fullmatch(name) and len(value) <= _TAG_VALUE_CHARS
        if fits and (name in merged or len(merged) < TAGS_MAX):
            merged[name] = value
    return msgspec.structs.replace(conversation, tags=merged)


def cost_of(conversation: Conversation) -> float:
    """Return the cost of a conversation so far, in US dollars."""
    return conversation.metrics.accumulated_cost if conversation.metrics else 0.0


def is_over_budget(conversation: Conversation) -> bool:
    """Return whether a run must be interrupted now.

    A run is stopped when its cost reaches the budget. If the user continues anyway, it is stopped
    again after each further step that costs something.
    """
    metrics, budget = conversation.metrics, conversation.max_budget
    if metrics is None or budget is None or metrics.accumulated_cost < budget:
        return False
    stopped_at = conversation.facts.budget_stop_cost
    return stopped_at is None or metrics.accumulated_cost > stopped_at


def goes_on_over_budget(conversation: Conversation, spent: float) -> bool:
    """Return whether a run that was stopped for its budget may take a step: no cost since then.

    Only the user continues such a run.
    """
    stopped_at = conversation.facts.budget_stop_cost
    is_stopped = stopped_at is not None and not conversation.facts.is_stop_due
    return is_stopped and stopped_at is not None and spent <= stopped_at


def mark_budget_stop(conversation: Conversation) -> Conversation:
    """Return the conversation with the flag to stop its run at the present cost."""
    return conversation.with_facts(budget_stop_cost=cost_of(conversation), is_stop_due=True)


def _read(key: Any, value: bytes) -> tuple[str | None, ConversationStats | None]:
    """Return the status and the costs in a state update, None for each that it lacks."""
    match key:
        case "execution_status":
            return decode_or_none(value, _status), None
        case "stats":
            return None, _read_stats(value)
        case "full_state":
            state = decode_or_none(value, _full_state) or _FullState()
            status = decode_or_none(bytes(state.execution_status), _status)
            return status, _read_stats(bytes(state.stats))
        case _:
            return None, None


def _read_stats(raw: bytes) -> ConversationStats | None:
    """Decode costs; return None if they have too many parts, because all writes wait for this."""
    further = itertools.islice(_NAMED_OBJECT.finditer(raw), _MAX_LOOKED_AT, None)
    return decode_or_none(raw, _stats) if next(further, None) is None else None
