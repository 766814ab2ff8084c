"""What asks a git hosting service that the server does not know by itself."""

from agentsvc.domain.orders import Provider, SuggestedTask, TaskType
from agentsvc.domain.repositories import check_repository
from agentsvc.git.client import Answer, page_in, refused
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

__all__ = [
    "PAGE_MAX",
    "REPOSITORY_LOC",
    "Answer",
    "Branch",
    "BranchQuery",
    "File",
    "GitAccount",
    "Hosting",
    "Listing",
    "Number",
    "OwnerType",
    "Places",
    "Provider",
    "Repository",
    "RepositoryQuery",
    "SortBy",
    "SuggestedTask",
    "TaskType",
    "bad_cursor",
    "check_repository",
    "next_number",
    "number_of",
    "page_in",
    "quoted",
    "quoted_path",
    "refused",
]
