"""The services that the steps of a start share (`StartParts`), and subscriptions to start tasks."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from agentsvc.base import Supervisor
from agentsvc.config import ConversationsConfig
from agentsvc.conversations.archives import Archives
from agentsvc.conversations.deletion import ConversationDeletion
from agentsvc.conversations.event_ingestor import EventIngestor
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.model import StartTask
from agentsvc.conversations.model_tokens import ModelTokens
from agentsvc.conversations.starting.environments import Environments
from agentsvc.conversations.stores import ConversationStores
from agentsvc.git import GitProviders
from agentsvc.sandboxes import Sandboxes
from agentsvc.settings import SecretStore, SettingsStore
from agentsvc.storage import Vault


class StartFollowers:
    """Subscriptions to start tasks: queues for one task each, and listeners for all tasks."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, list[asyncio.Queue[StartTask | None]]] = defaultdict(list)
        self._listeners: list[Callable[[StartTask], None]] = []

    def listen(self, tell: Callable[[StartTask], None]) -> None:
        """Call `tell(task)` after each commit that changes a start task."""
        self._listeners.append(tell)

    def announce(self, task: StartTask) -> None:
        """Publish a changed start task to its followers and to all listeners."""
        for queue in self._queues.get(task.id, ()):
            queue.put_nowait(task)
        for tell in self._listeners:
            tell(task)

    def end(self, task_id: str) -> None:
        """Publish None to the followers of a start task that was deleted."""
        for queue in self._queues.get(task_id, ()):
            queue.put_nowait(None)

    @contextlib.contextmanager
    def followed(self, task_id: str) -> Iterator[asyncio.Queue[StartTask | None]]:
        """Subscribe to a start task inside the context; yield the queue of its changes."""
        queue: asyncio.Queue[StartTask | None] = asyncio.Queue()
        self._queues[task_id].append(queue)
        try:
            yield queue
        finally:
            self._queues[task_id].remove(queue)
            if not self._queues[task_id]:
                del self._queues[task_id]


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """The services that the steps of a start use; one instance for the whole server."""

    stores: ConversationStores
    vault: Vault
    sandboxes: Sandboxes
    archives: Archives
    settings: SettingsStore
    secrets: SecretStore
    events: EventLog
    model_tokens: ModelTokens
    ingestor: EventIngestor
    deletion: ConversationDeletion
    supervisor: Supervisor
    git: GitProviders
    config: ConversationsConfig
    followers: StartFollowers = msgspec.field(default_factory=StartFollowers)
    environments: Environments = msgspec.field(default_factory=Environments)
    """The prepared environments that conversations can begin with."""
