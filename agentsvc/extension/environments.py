"""Prepared environments: the types for a plugin that provides them to starts, and prepares them.

Such a plugin sets `Server.conversations.starts.environments.source`.
"""

from agentsvc.agentserver import AgentServer
from agentsvc.conversations import Environment, EnvironmentSource, Workspace
from agentsvc.plugin import ImageBuild, Spec

__all__ = ["AgentServer", "Environment", "EnvironmentSource", "ImageBuild", "Spec", "Workspace"]
