"""The order of the conversation of an attempt. Pure."""

from agentsvc.extension.conversations import StartOrder, WhenFull
from agentsvc.extension.preferences import Settings

from .model import Attempt, AttemptOrder

_MAX_TITLE = 190


def order_of(
    definition: AttemptOrder, model: str | None, settings: Settings, one: Attempt | None = None
) -> StartOrder:
    """Return what is ordered for an attempt, or for any that gets this model.

    The agent is told its task later: when it is known with which files it begins.
    """
    is_saved = model in settings.llm_profiles
    return StartOrder(
        conversation_id=one.conversation_id if one else None,
        title=title_of(definition, one) if one else None,
        llm_profile=model if is_saved else None,
        llm_model=None if is_saved else model,
        repository=definition.repository or None,
        branch=definition.branch or None,
        provider=definition.provider if definition.repository else None,
        environment_id=definition.environment_id,
        when_full=WhenFull.QUEUE,
        max_budget=definition.budget,
        is_alone=True,
    )


def title_of(definition: AttemptOrder, one: Attempt) -> str:
    """Return what the conversation of an attempt is called until it is chosen."""
    return f"{definition.name[:_MAX_TITLE]} ({one.number}/{definition.size})"
