"""Publishes events to plugins, each after it was stored."""

from typing import Any

from agentsvc.base import EventBus, Notice, Subject, new_id, now
from agentsvc.conversations import Conversations, StartTask
from agentsvc.domain import StartStatus
from agentsvc.plugin import Event
from agentsvc.sandboxes import Notifier, Sandbox, Sandboxes


def publish_to(
    notifier: Notifier, *, event_bus: EventBus, conversations: Conversations, sandboxes: Sandboxes
) -> None:
    """Publish all kinds of events to the notifier, if any plugin listens."""
    if not notifier.has_listeners:
        return

    def publish(kind: str, subject_id: str, **data: Any) -> None:
        notifier.publish(Event(id=new_id(), kind=kind, at=now(), subject_id=subject_id, data=data))

    def on_sandbox(was: Sandbox, now: Sandbox | None) -> None:
        facts = {"backend": was.backend, "spec_id": was.spec_id}
        publish("sandbox.changed", was.id, status=str(now.status if now else "DELETED"), **facts)

    def on_start(task: StartTask) -> None:
        if task.status is StartStatus.READY:
            publish("conversation.started", task.conversation_id, sandbox_id=task.sandbox_id)
        elif task.status is StartStatus.ERROR:
            publish("conversation.start_failed", task.conversation_id, reason=task.detail or "")

    def on_news(news: Notice) -> None:
        if news.subject is Subject.EVENTS:
            publish("conversation.events", news.id, seq=news.seq)
        elif news.subject is Subject.CONVERSATION:
            kind = "conversation.deleted" if news.is_deleted else "conversation.changed"
            publish(kind, news.id)

    sandboxes.on_change(on_sandbox)
    conversations.starts.on_change(on_start)
    event_bus.watch_all(on_news)
