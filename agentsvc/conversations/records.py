"""Creation of conversation records from orders, and changes to them. Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from agentsvc.base import BadRequest, dashed, new_id, now, parse_uuid
from agentsvc.conversations.model import (
    Conversation,
    ConversationPatch,
    Generation,
    Stage,
    StartTask,
    TitleSource,
    default_title,
)
from agentsvc.conversations.other_agents import acp_server_of, tags_of
from agentsvc.domain import StartOrder, StartStatus, Trigger, refuse_credentials
from agentsvc.settings import Settings

_KEYLESS_PREFIXES: Final = (
    "bedrock/",
    "ollama/",
    "ollama_chat/",
    "vertex_ai/",
    "lm_studio/",
    "hosted_vllm/",
)


def require_settings(order: StartOrder, settings: Settings | None) -> None:
    """Raise BadRequest in the format of V0 if the settings or the model key are missing."""
    if settings is None:
        raise _not_set("Settings not found", "CONFIGURATION$SETTINGS_NOT_FOUND")
    model = order.llm_model or settings.llm_model or ""
    is_keyless = model.startswith(_KEYLESS_PREFIXES) or bool(settings.llm_base_url)
    if not settings.llm_api_key and not is_keyless:
        text = "Error authenticating with the LLM provider. Please check your API key"
        raise _not_set(text, "STATUS$ERROR_LLM_AUTHENTICATION")


def _not_set(text: str, msg_id: str) -> BadRequest:
    return BadRequest(text, extra={"status": "error", "message": text, "msg_id": msg_id})


def new_task(
    user_id: str, conversation_id: str, order: StartOrder, generation: Generation
) -> StartTask:
    """Return a start task at its first stage."""
    moment = now()
    return StartTask(
        id=new_id(),
        user_id=user_id,
        conversation_id=conversation_id,
        status=StartStatus.WORKING,
        request=order,
        generation=generation,
        stages=(Stage(status=StartStatus.WORKING, started_at=moment),),
        created_at=moment,
        updated_at=moment,
    )


def new_conversation(
    user_id: str,
    conversation_id: str,
    order: StartOrder,
    settings: Settings,
    parent: Conversation | None,
    *,
    generation: Generation = Generation.V1,
) -> Conversation:
    """Return a conversation that is to be started; the parent supplies missing values of the order.

    Raises InvalidRequest for a repository URL with a password, which would be stored in plain text.
    """
    refuse_credentials(order.repository or "")
    moment = now()
    is_from_task = order.suggested_task is not None
    is_other = acp_server_of(order, settings) is not None
    return Conversation(
        id=conversation_id,
        user_id=user_id,
        alias=order.alias,
        sandbox_id=parent.sandbox_id if parent else None,
        title=order.title or default_title(conversation_id),
        title_source=TitleSource.USER if order.title else TitleSource.DEFAULT,
        selected_repository=order.repository or (parent.selected_repository if parent else None),
        selected_branch=order.branch or (parent.selected_branch if parent else None),
        git_provider=order.provider or (parent.git_provider if parent else None),
        trigger=order.trigger or (Trigger.SUGGESTED_TASK if is_from_task else None),
        pr_number=order.pr_number,
        llm_model=settings.agent_options.acp_model
        if is_other
        else order.llm_model or settings.llm_model,
        agent_kind="acp" if is_other else "openhands",
        parent_id=parent.id if parent else None,
        is_public=order.public,
        tags=tags_of(order, settings),
        generation=generation,
        max_budget=order.max_budget or settings.max_budget_per_task,
        created_at=moment,
        updated_at=moment,
    )


def patched(conversation: Conversation, patch: ConversationPatch) -> Conversation:
    """Return the conversation with a patch applied."""
    given = {
        "title": patch.title,
        "is_public": patch.is_public,
        "selected_repository": patch.repository,
        "selected_branch": patch.branch,
        "git_provider": patch.provider,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not UNSET}
    if "title" in changes:
        changes["title_source"] = TitleSource.USER if changes["title"] else TitleSource.DEFAULT
    if changes:
        changes["updated_at"] = now()
    if patch.labels is not UNSET:
        # A change of labels is not an update of the conversation.
        labels = tuple(dict.fromkeys(patch.labels or ()))
        changes["facts"] = msgspec.structs.replace(conversation.facts, labels=labels)
    return msgspec.structs.replace(conversation, **changes)


def shown(conversation_id: str) -> str:
    """Return a conversation's id as a dashed UUID, or unchanged if it is invalid."""
    known = parse_uuid(conversation_id)
    return dashed(known) if known else conversation_id
