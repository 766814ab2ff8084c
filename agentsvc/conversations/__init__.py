"""Conversations: started by a pipeline, updated by events, searched, deleted.

Read `model` (structs) first, then `service`, the class that other packages use; `table` has the
SQL, `starting` the start pipeline, `message_queue` the delivery of messages to agents,
`event_ingestor` the handling of events from sandboxes, `event_log` the stored events. Nothing here
knows HTTP. Imports `sandboxes`, `git` and what these import.
"""

from agentsvc.conversations.agent_liveness import AgentLiveness as AgentLiveness
from agentsvc.conversations.archives.model import Archive as Archive
from agentsvc.conversations.archives.model import ArchiveState as ArchiveState
from agentsvc.conversations.archives.service import Archives as Archives
from agentsvc.conversations.archives.tarball import UnpackLimits as UnpackLimits
from agentsvc.conversations.archives.tarball import check as check
from agentsvc.conversations.callbacks import SandboxCallbacks as SandboxCallbacks
from agentsvc.conversations.deletion import ConversationDeletion as ConversationDeletion
from agentsvc.conversations.deltas import DeltaSubscriptions as DeltaSubscriptions
from agentsvc.conversations.event_ingestor import TOOL_SERVER_FAILED as TOOL_SERVER_FAILED
from agentsvc.conversations.event_ingestor import EventIngestor as EventIngestor
from agentsvc.conversations.event_ingestor import error_event as error_event
from agentsvc.conversations.event_log import IMPORTED_KEY as IMPORTED_KEY
from agentsvc.conversations.event_log import STATE_REQUEST_KEY as STATE_REQUEST_KEY
from agentsvc.conversations.event_log import EventLog as EventLog
from agentsvc.conversations.event_table import EventQuery as EventQuery
from agentsvc.conversations.event_table import StoredEvent as StoredEvent
from agentsvc.conversations.export import Exports as Exports
from agentsvc.conversations.files import USUAL_ROOT as USUAL_ROOT
from agentsvc.conversations.files import ConversationFiles as ConversationFiles
from agentsvc.conversations.files import HookEvent as HookEvent
from agentsvc.conversations.files import Skill as Skill
from agentsvc.conversations.live_settings import LiveSettings as LiveSettings
from agentsvc.conversations.message_queue import MessageQueue as MessageQueue
from agentsvc.conversations.message_queue import Queued as Queued
from agentsvc.conversations.message_queue_table import PendingKind as PendingKind
from agentsvc.conversations.message_queue_table import PendingMessage as PendingMessage
from agentsvc.conversations.message_search import FoundMessage as FoundMessage
from agentsvc.conversations.message_search import find_messages as find_messages
from agentsvc.conversations.model import DEFAULT_CONDENSER_SIZE as DEFAULT_CONDENSER_SIZE
from agentsvc.conversations.model import DEFAULT_MAX_ITERATIONS as DEFAULT_MAX_ITERATIONS
from agentsvc.conversations.model import SANDBOX_GONE as SANDBOX_GONE
from agentsvc.conversations.model import Conversation as Conversation
from agentsvc.conversations.model import ConversationPatch as ConversationPatch
from agentsvc.conversations.model import ConversationQuery as ConversationQuery
from agentsvc.conversations.model import ConversationView as ConversationView
from agentsvc.conversations.model import Facts as Facts
from agentsvc.conversations.model import Generation as Generation
from agentsvc.conversations.model import Metrics as Metrics
from agentsvc.conversations.model import Stage as Stage
from agentsvc.conversations.model import StartTask as StartTask
from agentsvc.conversations.model import TitleSource as TitleSource
from agentsvc.conversations.model import TokenUsage as TokenUsage
from agentsvc.conversations.model import default_title as default_title
from agentsvc.conversations.model_tokens import PATH as PATH
from agentsvc.conversations.model_tokens import ModelToken as ModelToken
from agentsvc.conversations.model_tokens import ModelTokens as ModelTokens
from agentsvc.conversations.other_agents import SERVER_TAG as SERVER_TAG
from agentsvc.conversations.replay_script import Question as Question
from agentsvc.conversations.replays import Replays as Replays
from agentsvc.conversations.retention import IdleSandbox as IdleSandbox
from agentsvc.conversations.retention import count_old_events as count_old_events
from agentsvc.conversations.retention import delete_idle as delete_idle
from agentsvc.conversations.retention import delete_old_events as delete_old_events
from agentsvc.conversations.retention import find_idle as find_idle
from agentsvc.conversations.retention import find_idle_by_rules as find_idle_by_rules
from agentsvc.conversations.retention import keep_to_age as keep_to_age
from agentsvc.conversations.secret_lookup import LookupTokens as LookupTokens
from agentsvc.conversations.secret_lookup import ProviderPass as ProviderPass
from agentsvc.conversations.service import Conversations as Conversations
from agentsvc.conversations.starting.environments import Environment as Environment
from agentsvc.conversations.starting.environments import EnvironmentSource as EnvironmentSource
from agentsvc.conversations.starting.parts import StartParts as StartParts
from agentsvc.conversations.starting.prompts import first_message as first_message
from agentsvc.conversations.starting.service import Starts as Starts
from agentsvc.conversations.starting.task_table import StartTaskTable as StartTaskTable
from agentsvc.conversations.starting.workspace import Workspace as Workspace
from agentsvc.conversations.statistics import Figures as Figures
from agentsvc.conversations.statistics import quantile as quantile
from agentsvc.conversations.statistics import read_figures as read_figures
from agentsvc.conversations.stores import ConversationStores as ConversationStores
from agentsvc.conversations.streams import ConversationStream as ConversationStream
from agentsvc.conversations.streams import Delta as Delta
from agentsvc.conversations.streams import Mark as Mark
from agentsvc.conversations.streams import StreamedChange as StreamedChange
from agentsvc.conversations.streams import Streams as Streams
from agentsvc.conversations.table import ConversationTable as ConversationTable
from agentsvc.conversations.user_deletion import PendingUserDeletion as PendingUserDeletion
from agentsvc.conversations.user_deletion import UserDeletions as UserDeletions
from agentsvc.conversations.user_deletion import request_user_deletion as request_user_deletion
