"""Prepared environments: what a plugin that keeps them tells starts, and prepares them with.

`Server.conversations.starts.environments.source` is to be set to what knows the environments.
"""

from agentsvc.agentserver import AgentServer as AgentServer
from agentsvc.conversations import Environment as Environment
from agentsvc.conversations import EnvironmentSource as EnvironmentSource
from agentsvc.conversations import Workspace as Workspace
from agentsvc.plugin import ImageBuild as ImageBuild
from agentsvc.plugin import Spec as Spec
