"""The APIs of git hosting services: one module for each provider, behind one service.

No other module knows a provider's paths or words. `client` sends the requests, `hosting` says
what a provider can be asked, `model` what is answered.
"""

from agentsvc.git.client import ANSWER_MAX
from agentsvc.git.microagents import Microagent
from agentsvc.git.model import (
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Listing,
    OwnerType,
    Repository,
    RepositoryQuery,
    SortBy,
)
from agentsvc.git.service import GitProviders

__all__ = [
    "ANSWER_MAX",
    "Branch",
    "BranchQuery",
    "File",
    "GitAccount",
    "GitProviders",
    "Listing",
    "Microagent",
    "OwnerType",
    "Repository",
    "RepositoryQuery",
    "SortBy",
]
