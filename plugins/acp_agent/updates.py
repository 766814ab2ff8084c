"""Converts events to updates for an editor, and its prompts to messages. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from agentsvc.extension.reading import member, texts

type Json = dict[str, Any]

_KINDS: Final = {
    "terminal": "execute",
    "file_editor": "edit",
    "grep": "search",
    "glob": "search",
    "browser": "fetch",
}
_MAX_TITLE: Final = 120


def updates_of(event: Json) -> Iterator[Json]:
    """Yield the updates for an event."""
    match event.get("kind"):
        case "MessageEvent":
            who = "user" if event.get("source") == "user" else "agent"
            yield from chunk(
                f"{who}_message_chunk", texts(member(event, "llm_message").get("content"))
            )
        case "ActionEvent":
            yield from chunk("agent_thought_chunk", str(event.get("reasoning_content") or ""))
            yield from chunk("agent_message_chunk", texts(event.get("thought")))
            yield from _action_updates(event)
        case "ObservationEvent" if event.get("tool_name") not in ("finish", "think"):
            result = member(event, "observation")
            status = "failed" if result.get("is_error") else "completed"
            yield _ended(event, status, texts(result.get("content")))
        case "AgentErrorEvent" | "UserRejectObservation":
            text = event.get("error") or event.get("rejection_reason") or ""
            yield _ended(event, "failed", str(text))
        case "ConversationErrorEvent":
            yield from chunk(
                "agent_message_chunk", f"Error: {event.get('detail') or event.get('code')}"
            )
        case _:
            return


def chunk(kind: str, text: str) -> Iterator[Json]:
    """Yield a message chunk, unless the text is empty."""
    if text:
        yield {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def tool_call_of(event: Json) -> Json:
    """Convert an action to a tool call."""
    action, tool = member(event, "action"), str(event.get("tool_name") or "tool")
    path = action.get("path")
    kind = (
        "read"
        if action.get("command") == "view"
        else _KINDS.get(tool.split("_", maxsplit=1)[0], _KINDS.get(tool, "other"))
    )
    detail = str(event.get("summary") or action.get("command") or path or "")
    return {
        "toolCallId": str(event.get("tool_call_id") or event.get("id")),
        "title": f"{tool}: {detail}"[:_MAX_TITLE] if detail else tool,
        "kind": kind,
        "rawInput": action,
        **({"locations": [{"path": path}]} if isinstance(path, str) else {}),
    }


def to_content(prompt: Any) -> list[Json]:
    """Convert a prompt to message parts; linked and binary resources become their URI."""
    parts: list[Json] = []
    for block in prompt if isinstance(prompt, list) else []:
        match block:
            case {"type": "text", "text": str(text)}:
                parts.append(_text(text))
            case {"type": "image", "data": str(data), "mimeType": str(media)}:
                parts.append({"type": "image", "image_urls": [f"data:{media};base64,{data}"]})
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                parts.append(_text(f"{uri}:\n{text}"))
            case {"type": "resource", "resource": {"uri": str(uri)}} | {
                "type": "resource_link",
                "uri": str(uri),
            }:
                parts.append(_text(uri))
            case _:
                pass
    return parts


def _action_updates(event: Json) -> Iterator[Json]:
    action = member(event, "action")
    match action.get("kind"):
        case "FinishAction":
            yield from chunk("agent_message_chunk", str(action.get("message") or ""))
        case "ThinkAction":
            yield from chunk("agent_thought_chunk", str(action.get("thought") or ""))
        case _:
            yield {"sessionUpdate": "tool_call", "status": "in_progress", **tool_call_of(event)}


def _ended(event: Json, status: str, text: str) -> Json:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": str(event.get("tool_call_id") or event.get("action_id")),
        "status": status,
        "content": content if text else [],
    }


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
