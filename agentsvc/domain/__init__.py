"""Requests in the server's own terms: orders, agent options, tool servers (MCP), repositories.

Begin with `orders`. Both API generations translate their requests to these values; no I/O.
Imports `base` only.
"""

from agentsvc.domain.agent_options import SECRET_OPTIONS as SECRET_OPTIONS
from agentsvc.domain.agent_options import AcpOptions as AcpOptions
from agentsvc.domain.agent_options import AgentOptions as AgentOptions
from agentsvc.domain.agent_options import CondenserOptions as CondenserOptions
from agentsvc.domain.agent_options import Llm as Llm
from agentsvc.domain.agent_options import LlmOptions as LlmOptions
from agentsvc.domain.agent_options import Text as Text
from agentsvc.domain.agent_options import VerificationOptions as VerificationOptions
from agentsvc.domain.agent_options import llm_to_agent as llm_to_agent
from agentsvc.domain.agent_options import read_options as read_options
from agentsvc.domain.agent_options import reveal_options as reveal_options
from agentsvc.domain.agent_options import secrets_of as secrets_of
from agentsvc.domain.agent_options import without_secret_options as without_secret_options
from agentsvc.domain.mcp import McpConfig as McpConfig
from agentsvc.domain.mcp import McpListsBody as McpListsBody
from agentsvc.domain.mcp import restore_secrets as restore_secrets
from agentsvc.domain.mcp import show_mcp_config as show_mcp_config
from agentsvc.domain.mcp import to_mcp_config as to_mcp_config
from agentsvc.domain.mcp_map import NamedServers as NamedServers
from agentsvc.domain.mcp_map import read_mcp_map as read_mcp_map
from agentsvc.domain.mcp_map import show_mcp_map as show_mcp_map
from agentsvc.domain.mcp_map import to_agent as to_agent
from agentsvc.domain.orders import AgentPlugin as AgentPlugin
from agentsvc.domain.orders import AgentType as AgentType
from agentsvc.domain.orders import Content as Content
from agentsvc.domain.orders import ContentKind as ContentKind
from agentsvc.domain.orders import ConversationSort as ConversationSort
from agentsvc.domain.orders import CopySource as CopySource
from agentsvc.domain.orders import ExecutionStatus as ExecutionStatus
from agentsvc.domain.orders import Message as Message
from agentsvc.domain.orders import Provider as Provider
from agentsvc.domain.orders import RecordedStep as RecordedStep
from agentsvc.domain.orders import StartOrder as StartOrder
from agentsvc.domain.orders import StartSort as StartSort
from agentsvc.domain.orders import StartStatus as StartStatus
from agentsvc.domain.orders import SuggestedTask as SuggestedTask
from agentsvc.domain.orders import TaskType as TaskType
from agentsvc.domain.orders import ToolUse as ToolUse
from agentsvc.domain.orders import Trigger as Trigger
from agentsvc.domain.orders import WhenFull as WhenFull
from agentsvc.domain.orders import message_of as message_of
from agentsvc.domain.repositories import DEFAULT_HOSTS as DEFAULT_HOSTS
from agentsvc.domain.repositories import SentBranch as SentBranch
from agentsvc.domain.repositories import SentRepository as SentRepository
from agentsvc.domain.repositories import check_branch as check_branch
from agentsvc.domain.repositories import check_host as check_host
from agentsvc.domain.repositories import check_repository as check_repository
from agentsvc.domain.repositories import credentials as credentials
from agentsvc.domain.repositories import locate as locate
from agentsvc.domain.repositories import refuse_credentials as refuse_credentials
from agentsvc.domain.repositories import token_variable as token_variable
from agentsvc.domain.secret_json import encode_revealed as encode_revealed
from agentsvc.domain.secret_json import revealed_decoder as revealed_decoder
