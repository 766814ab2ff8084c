"""Response fields of git providers and suggested tasks that V0 and V1 share."""

from typing import Final

import msgspec

from agentsvc.domain import Provider, TaskType
from agentsvc.git import OwnerType

_NAMES: Final = {
    "provider": "git_provider",
    "stars": "stargazers_count",
    "is_protected": "protected",
}
"""JSON names of fields whose names in `agentsvc.git` differ."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account at a git provider."""

    id: str
    """Id of the account at the provider"""
    login: str
    """Name of the account"""
    avatar_url: str
    """URL of the account's picture; empty if it has none"""
    company: str | None
    """Company the account names; null if none"""
    name: str | None
    """Name the account shows; null if none"""
    email: str | None
    """E-mail address the account shows; null if none"""


class BranchFields(
    msgspec.Struct, frozen=True, kw_only=True, rename={**_NAMES, "pushed_at": "last_push_date"}
):
    """A branch; a field is null if the provider does not report it."""

    name: str
    """Name of the branch; a valid `selected_branch` of a start request"""
    commit_sha: str
    """Its latest commit"""
    is_protected: bool
    """Whether the branch is protected from pushes"""
    pushed_at: str | None
    """Time of the last push, ISO 8601; null if not reported"""


class RepositoryFields(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A repository; a field is null if the provider does not report it."""

    id: str
    """Id of the repository at its provider"""
    full_name: str
    """`owner/name`; a valid `repository` of a start request"""
    provider: Provider
    """Git provider that hosts it"""
    is_public: bool
    """Whether the repository is public"""
    stars: int | None
    """Number of stars; null if not reported"""
    link_header: str | None = None
    """Value of a `Link` header with the next page; null on the last page"""
    pushed_at: str | None
    """Time of the last push, ISO 8601; null if not reported"""
    owner_type: OwnerType | None
    """Kind of owner; null if not reported"""
    main_branch: str | None
    """Name of the default branch; null if not reported"""


class TaskFields(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A suggested task for a conversation."""

    provider: Provider
    """Git provider of the repository"""
    task_type: TaskType
    """Kind of task"""
    repo: str
    """Repository of the issue or pull request, as `owner/name`"""
    issue_number: int
    """Number of the issue or pull request"""
    title: str
    """Title of the issue or pull request"""
