"""Views of git providers and suggested tasks that both generations share."""

import msgspec

from agentsvc.domain import Provider, TaskType


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
