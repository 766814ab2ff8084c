"""Conversations: started step by step, kept up to date, found again, deleted.

Begin with `model` (structs), then `service`, the class that others use; `table` has the SQL, `starting` the
steps of a start, `message_queue` what agents are told, `event_ingestor` what sandboxes report,
`event_log` the stored events. Nothing here knows HTTP. Imports `sandboxes` and what stands below it.
"""

from agentsvc.conversations.archives.model import Archive, ArchiveState
from agentsvc.conversations.archives.service import Archives
from agentsvc.conversations.archives.tarball import Bounds, check
from agentsvc.conversations.callbacks import SandboxCallbacks
from agentsvc.conversations.deletion import ConversationDeletion
from agentsvc.conversations.deltas import DeltaSubscriptions
from agentsvc.conversations.event_ingestor import TOOL_SERVER_FAILED, EventIngestor, error_event
from agentsvc.conversations.event_log import IMPORTED_KEY, WISH_KEY, EventLog
from agentsvc.conversations.event_table import EventQuery, StoredEvent
from agentsvc.conversations.export import Exports
from agentsvc.conversations.files import USUAL_ROOT, ConversationFiles, HookEvent, Skill
from agentsvc.conversations.live_settings import LiveSettings, UserSkill
from agentsvc.conversations.message_queue import MessageQueue, Queued
from agentsvc.conversations.message_queue_table import Pending, PendingKind
from agentsvc.conversations.message_search import FoundMessage, find_messages
from agentsvc.conversations.model import (
    SANDBOX_GONE,
    Conversation,
    ConversationPatch,
    ConversationQuery,
    ConversationView,
    Facts,
    Generation,
    Metrics,
    Stage,
    StartTask,
    TitleSource,
    TokenUsage,
    default_title,
)
from agentsvc.conversations.model_tokens import PATH, ModelToken, ModelTokens
from agentsvc.conversations.other_agents import SERVER_TAG
from agentsvc.conversations.replay_script import Question
from agentsvc.conversations.replays import Replays
from agentsvc.conversations.retention import (
    IdleSandbox,
    count_old_events,
    delete_old_events,
    find_idle,
    find_idle_by_rules,
    give_up_idle,
    keep_to_age,
)
from agentsvc.conversations.secret_lookup import LookupTokens, ProviderPass
from agentsvc.conversations.service import Conversations
from agentsvc.conversations.starting.agent_request import (
    DEFAULT_CONDENSER_SIZE,
    DEFAULT_MAX_ITERATIONS,
)
from agentsvc.conversations.starting.assembly import make_starts
from agentsvc.conversations.starting.environments import Environment, EnvironmentSource
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.starting.workspace import Workspace
from agentsvc.conversations.statistics import Figures, quantile, read_figures
from agentsvc.conversations.stores import ConversationStores
from agentsvc.conversations.streams import (
    Change,
    ConversationStream,
    Delta,
    Mark,
    Streams,
    UserStream,
)
from agentsvc.conversations.table import ConversationTable
from agentsvc.conversations.user_deletion import PendingUserDeletion, UserDeletions, let_go

__all__ = [
    "DEFAULT_CONDENSER_SIZE",
    "DEFAULT_MAX_ITERATIONS",
    "IMPORTED_KEY",
    "PATH",
    "SANDBOX_GONE",
    "SERVER_TAG",
    "TOOL_SERVER_FAILED",
    "USUAL_ROOT",
    "WISH_KEY",
    "Archive",
    "ArchiveState",
    "Archives",
    "Bounds",
    "Change",
    "Conversation",
    "ConversationDeletion",
    "ConversationFiles",
    "ConversationPatch",
    "ConversationQuery",
    "ConversationStores",
    "ConversationStream",
    "ConversationTable",
    "ConversationView",
    "Conversations",
    "Delta",
    "DeltaSubscriptions",
    "Environment",
    "EnvironmentSource",
    "EventIngestor",
    "EventLog",
    "EventQuery",
    "Exports",
    "Facts",
    "Figures",
    "FoundMessage",
    "Generation",
    "HookEvent",
    "IdleSandbox",
    "LiveSettings",
    "LookupTokens",
    "Mark",
    "MessageQueue",
    "Metrics",
    "ModelToken",
    "ModelTokens",
    "Pending",
    "PendingKind",
    "PendingUserDeletion",
    "ProviderPass",
    "Question",
    "Queued",
    "Replays",
    "SandboxCallbacks",
    "Skill",
    "Stage",
    "StartTask",
    "StartTaskTable",
    "StoredEvent",
    "Streams",
    "TitleSource",
    "TokenUsage",
    "UserDeletions",
    "UserSkill",
    "UserStream",
    "Workspace",
    "check",
    "count_old_events",
    "default_title",
    "delete_old_events",
    "error_event",
    "find_idle",
    "find_idle_by_rules",
    "find_messages",
    "first_message",
    "give_up_idle",
    "keep_to_age",
    "let_go",
    "make_starts",
    "quantile",
    "read_figures",
]
