"""The tables of conversations and start tasks."""

from agentsvc.base import EventBus
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.table import ConversationTable
from agentsvc.storage import Database, Vault


class ConversationStores:
    """The tables of conversations and start tasks, which announce each change on the bus."""

    def __init__(self, db: Database, vault: Vault, event_bus: EventBus) -> None:
        self.db = db
        self.event_bus = event_bus
        self.conversations = ConversationTable(db, event_bus)
        self.tasks = StartTaskTable(db, vault, event_bus)
