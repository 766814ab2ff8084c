"""Types for starting and controlling conversations, in addition to the services of every extension."""

from agentsvc.accounts import Principal as Principal
from agentsvc.conversations import ConversationFiles as ConversationFiles
from agentsvc.conversations import ConversationQuery as ConversationQuery
from agentsvc.conversations import EventLog as EventLog
from agentsvc.conversations import MessageQueue as MessageQueue
from agentsvc.conversations import PendingKind as PendingKind
from agentsvc.conversations import PendingMessage as PendingMessage
from agentsvc.conversations import StoredEvent as StoredEvent
from agentsvc.domain import Content as Content
from agentsvc.domain import ContentKind as ContentKind
from agentsvc.domain import ExecutionStatus as ExecutionStatus
from agentsvc.domain import Message
from agentsvc.domain import StartOrder as StartOrder
from agentsvc.http import FILES as FILES
from agentsvc.http import PENDING as PENDING

SpokenMessage = Message
