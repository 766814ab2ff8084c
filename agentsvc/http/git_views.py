"""Views of git providers and suggested tasks that both generations share."""

from typing import Final

import msgspec

from agentsvc.domain import Provider, TaskType
from agentsvc.git import OwnerType

_NAMES: Final = {
    "provider": "git_provider",
    "stars": "stargazers_count",
    "is_protected": "protected",
}
"""How clients call what providers tell."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Who somebody is at the git provider."""

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
    """A branch; null stands for what its provider does not tell."""

    name: str
    """Name of the branch, which `selected_branch` takes"""
    commit_sha: str
    """Its latest commit"""
    is_protected: bool
    """Whether the provider protects it from pushes"""
    pushed_at: str | None
    """When it was last pushed to, ISO 8601; null: not told"""


class RepositoryFields(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A repository; null stands for what its provider does not tell."""

    id: str
    """Id of the repository at its provider"""
    full_name: str
    """`owner/name`, which `repository` of a start takes"""
    provider: Provider
    """Where it is"""
    is_public: bool
    """Whether everybody can read it"""
    stars: int | None
    """How many accounts have starred it; null: not told"""
    link_header: str | None = None
    """Where the provider says the next page is; null on the last page"""
    pushed_at: str | None
    """When it was last pushed to, ISO 8601; null: not told"""
    owner_type: OwnerType | None
    """Who owns it; null: not told"""
    main_branch: str | None
    """Name of its default branch; null: not told"""


class TaskFields(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Something to do, with which a conversation can start."""

    provider: Provider
    """Where it was found"""
    task_type: TaskType
    """What there is to do"""
    repo: str
    """The repository it is in, as `owner/name`"""
    issue_number: int
    """Number of the issue or pull request"""
    title: str
    """Title of the issue or pull request"""
