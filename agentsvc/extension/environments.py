"""Prepared environments: what a plugin that keeps them tells starts, and prepares them with.

`Server.conversations.starts.environments.source` is to be set to what knows the environments.
"""

from agentsvc.agentserver import AgentServer
from agentsvc.conversations import Environment, EnvironmentSource, Workspace
from agentsvc.plugin import ImageBuild, Spec

__all__ = ["AgentServer", "Environment", "EnvironmentSource", "ImageBuild", "Spec", "Workspace"]
