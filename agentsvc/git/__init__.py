"""Git hosting services: one module for each provider, behind one service.

Begin with `service`. `client` sends the requests, `checkout` fetches and pushes for the server itself, `hosting` is the interface of a provider, `model` what is
answered; GitHub and GitLab are here, others are in the plugin `githosts`. Cloning into sandboxes is in
`conversations.starting.workspace`. Imports `settings`, `agentserver`, `domain` and `base`.
"""

from agentsvc.git.checkout import Checkout, GitRemote, Head
from agentsvc.git.client import ANSWER_MAX, Answer, Api, page_in, refused
from agentsvc.git.hosting import (
    REPOSITORY_LOC,
    Hosting,
    Places,
    bad_cursor,
    next_number,
    number_of,
    quoted,
    quoted_path,
)
from agentsvc.git.microagents import Microagent
from agentsvc.git.model import (
    PAGE_MAX,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Listing,
    Number,
    OwnerType,
    Repository,
    RepositoryQuery,
    SortBy,
)
from agentsvc.git.service import GitProviders

__all__ = [
    "ANSWER_MAX",
    "PAGE_MAX",
    "REPOSITORY_LOC",
    "Answer",
    "Api",
    "Branch",
    "BranchQuery",
    "Checkout",
    "File",
    "GitAccount",
    "GitProviders",
    "GitRemote",
    "Head",
    "Hosting",
    "Listing",
    "Microagent",
    "Number",
    "OwnerType",
    "Places",
    "Repository",
    "RepositoryQuery",
    "SortBy",
    "bad_cursor",
    "next_number",
    "number_of",
    "page_in",
    "quoted",
    "quoted_path",
    "refused",
]
