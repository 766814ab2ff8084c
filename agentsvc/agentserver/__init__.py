"""The HTTP client for agent servers in sandboxes, and the connector that refuses private addresses.

Read `client` first. `conversations` interprets the responses. Imports `base` and `plugin`.
"""

from agentsvc.agentserver.client import AgentClient as AgentClient
from agentsvc.agentserver.client import AgentServer as AgentServer
from agentsvc.agentserver.responses import MAX_CONVERSATION_BYTES as MAX_CONVERSATION_BYTES
from agentsvc.agentserver.responses import MAX_MODEL_CHARS as MAX_MODEL_CHARS
from agentsvc.agentserver.responses import AgentMetrics as AgentMetrics
from agentsvc.agentserver.responses import AgentTokenUsage as AgentTokenUsage
from agentsvc.agentserver.responses import CommandResult as CommandResult
from agentsvc.agentserver.responses import ConversationInfo as ConversationInfo
from agentsvc.agentserver.responses import ConversationStats as ConversationStats
from agentsvc.agentserver.responses import GitChange as GitChange
from agentsvc.agentserver.responses import GitDiff as GitDiff
from agentsvc.agentserver.responses import InitState as InitState
from agentsvc.agentserver.responses import KeyRefused as KeyRefused
from agentsvc.agentserver.responses import ServerFault as ServerFault
from agentsvc.agentserver.responses import convert_answer as convert_answer
from agentsvc.agentserver.responses import decode_events as decode_events
from agentsvc.agentserver.responses import tokens_of as tokens_of
from agentsvc.agentserver.safe_connector import AddressNotAllowed as AddressNotAllowed
from agentsvc.agentserver.safe_connector import Confirm as Confirm
from agentsvc.agentserver.safe_connector import Lookup as Lookup
from agentsvc.agentserver.safe_connector import SafeConnector as SafeConnector
from agentsvc.agentserver.safe_connector import confirm_peer as confirm_peer
from agentsvc.agentserver.safe_connector import refusal_in as refusal_in
from agentsvc.agentserver.safe_connector import split_socket as split_socket
