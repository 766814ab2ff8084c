"""Views of git providers and suggested tasks that both generations share."""

import msgspec

from agentsvc.base import copy_to
from agentsvc.domain import Provider, SuggestedTask, TaskType
from agentsvc.git import Branch, OwnerType, Repository


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


class BranchFields(msgspec.Struct, frozen=True, kw_only=True):
    """A branch; null stands for what its provider does not tell."""

    name: str
    """Name of the branch, which `selected_branch` takes"""
    commit_sha: str
    """Its latest commit"""
    protected: bool
    """Whether the provider protects it from pushes"""
    last_push_date: str | None
    """When it was last pushed to, ISO 8601; null: not told"""


class RepositoryFields(msgspec.Struct, frozen=True, kw_only=True):
    """A repository; null stands for what its provider does not tell."""

    id: str
    """Id of the repository at its provider"""
    full_name: str
    """`owner/name`, which `repository` of a start takes"""
    git_provider: Provider
    """Where it is"""
    is_public: bool
    """Whether everybody can read it"""
    stargazers_count: int | None
    """How many accounts have starred it; null: not told"""
    link_header: str | None
    """Where the provider says the next page is; null on the last page"""
    pushed_at: str | None
    """When it was last pushed to, ISO 8601; null: not told"""
    owner_type: OwnerType | None
    """Who owns it; null: not told"""
    main_branch: str | None
    """Name of its default branch; null: not told"""


class TaskFields(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do, with which a conversation can start."""

    git_provider: Provider
    """Where it was found"""
    task_type: TaskType
    """What there is to do"""
    repo: str
    """The repository it is in, as `owner/name`"""
    issue_number: int
    """Number of the issue or pull request"""
    title: str
    """Title of the issue or pull request"""


def show_repository[T: RepositoryFields](
    kind: type[T], one: Repository, link_header: str | None = None
) -> T:
    """Return a repository as shown; the link is the one to the next page, if there is one."""
    return copy_to(
        kind,
        one,
        git_provider=one.provider,
        stargazers_count=one.stars,
        link_header=link_header,
    )


def show_branch[T: BranchFields](kind: type[T], one: Branch) -> T:
    """Return a branch as shown."""
    return copy_to(kind, one, protected=one.is_protected, last_push_date=one.pushed_at)


def show_task[T: TaskFields](kind: type[T], one: SuggestedTask) -> T:
    """Return a task as shown."""
    return copy_to(kind, one, git_provider=one.provider)
