"""The HTTP client of agent servers inside sandboxes, and the connector that never calls private addresses.

Begin with `client`. What is done with the answers is in `conversations`. Imports `base` and `plugin`.
"""

from agentsvc.agentserver.client import AgentClient, AgentServer
from agentsvc.agentserver.responses import (
    CommandResult,
    ConversationInfo,
    ConversationStats,
    GitChange,
    GitDiff,
    InitState,
    decode_conversation,
)
from agentsvc.agentserver.safe_connector import (
    AddressNotAllowed,
    Confirm,
    Lookup,
    SafeConnector,
    confirm_peer,
    refusal_in,
)

__all__ = [
    "AddressNotAllowed",
    "AgentClient",
    "AgentServer",
    "CommandResult",
    "Confirm",
    "ConversationInfo",
    "ConversationStats",
    "GitChange",
    "GitDiff",
    "InitState",
    "Lookup",
    "SafeConnector",
    "confirm_peer",
    "decode_conversation",
    "refusal_in",
]
