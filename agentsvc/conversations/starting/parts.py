"""The services that the steps of a start need (`StartParts`), and the followers of starts."""

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
    """Those who follow starts: a queue for each, and listeners that hear of all."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, list[asyncio.Queue[StartTask | None]]] = defaultdict(list)
        self._listeners: list[Callable[[StartTask], None]] = []

    def listen(self, tell: Callable[[StartTask], None]) -> None:
        """Call this with each start that gets on, once that is stored."""
        self._listeners.append(tell)

    def announce(self, task: StartTask) -> None:
        """Tell of a start that has got on."""
        for queue in self._queues.get(task.id, ()):
            queue.put_nowait(task)
        for tell in self._listeners:
            tell(task)

    def end(self, task_id: str) -> None:
        """Tell that a start was deleted."""
        for queue in self._queues.get(task_id, ()):
            queue.put_nowait(None)

    @contextlib.contextmanager
    def followed(self, task_id: str) -> Iterator[asyncio.Queue[StartTask | None]]:
        """Give a queue that hears of a start inside this context."""
        queue: asyncio.Queue[StartTask | None] = asyncio.Queue()
        self._queues[task_id].append(queue)
        try:
            yield queue
        finally:
            self._queues[task_id].remove(queue)
            if not self._queues[task_id]:
                del self._queues[task_id]


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of a start are made of, once for a server."""

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
