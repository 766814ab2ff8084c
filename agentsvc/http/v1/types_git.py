"""What git providers have, on the wire of V1."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.gitproviders import Branch, OwnerType, Repository, RepositoryQuery, SortBy
from agentsvc.http.wire import Limit, PageQuery
from agentsvc.orders import Provider, SuggestedTask, TaskType
from agentsvc.values import decode_cursor

SHORT_PAGE: Final = 30

type Words = Annotated[str, Meta(max_length=256)]
type RepositoryName = Annotated[str, Meta(min_length=1, max_length=1024)]


class SortOrder(StrEnum):
    """What found repositories are sorted by, as far as the provider can."""

    STARS_DESC = "stars-desc"
    STARS_ASC = "stars-asc"
    FORKS_DESC = "forks-desc"
    FORKS_ASC = "forks-asc"
    UPDATED_DESC = "updated-desc"
    UPDATED_ASC = "updated-asc"


class InstallationsQuery(PageQuery, frozen=True, kw_only=True):
    """At which provider."""

    provider: Provider


class RepositoriesQuery(PageQuery, frozen=True, kw_only=True):
    """Which repositories are listed: your own, or those of them whose names have the words."""

    provider: Provider
    query: Words | None = None
    installation_id: Words | None = None
    sort_order: SortOrder | None = None


class BranchesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which branches are listed; `query` is a part of the name, and may be empty."""

    provider: Provider
    repository: RepositoryName
    query: Words
    page_id: str | None = None
    limit: Limit = SHORT_PAGE


class TasksQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which suggested tasks are listed."""

    page_id: str | None = None
    limit: Limit = SHORT_PAGE


class RepositoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A repository; null stands for what its provider does not tell."""

    id: str
    full_name: str
    git_provider: Provider
    is_public: bool
    stargazers_count: int | None
    link_header: None
    pushed_at: str | None
    owner_type: OwnerType | None
    main_branch: str | None


class BranchView(msgspec.Struct, frozen=True, kw_only=True):
    """A branch; null stands for what its provider does not tell."""

    name: str
    commit_sha: str
    protected: bool
    last_push_date: str | None


class SuggestedTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do, with which a conversation can start."""

    git_provider: Provider
    task_type: TaskType
    repo: str
    issue_number: int
    title: str


def to_query(query: RepositoriesQuery) -> RepositoryQuery:
    """Return which repositories are asked for."""
    name, _, direction = (query.sort_order or f"{SortBy.PUSHED}-desc").partition("-")
    return RepositoryQuery(
        text=(query.query or "").strip(),
        installation_id=query.installation_id or None,
        sort=SortBy(name),
        is_ascending=direction == "asc",
        cursor=to_cursor(query.page_id),
        limit=query.limit,
    )


def to_cursor(page_id: str | None) -> str | None:
    """Return what a provider needs to find a page; raises InvalidRequest."""
    return None if page_id is None else decode_cursor(page_id, str)[0]


def from_repository(one: Repository) -> RepositoryView:
    """Return a repository as it is shown; pages are told by `next_page_id` alone."""
    return RepositoryView(
        id=one.id,
        full_name=one.full_name,
        git_provider=one.provider,
        is_public=one.is_public,
        stargazers_count=one.stars,
        link_header=None,
        pushed_at=one.pushed_at,
        owner_type=one.owner_type,
        main_branch=one.main_branch,
    )


def from_branch(one: Branch) -> BranchView:
    """Return a branch as it is shown."""
    return BranchView(
        name=one.name,
        commit_sha=one.commit_sha,
        protected=one.is_protected,
        last_push_date=one.pushed_at,
    )


def from_task(one: SuggestedTask) -> SuggestedTaskView:
    """Return a task as it is shown."""
    return SuggestedTaskView(
        git_provider=Provider(one.provider),
        task_type=one.task_type,
        repo=one.repo,
        issue_number=one.issue_number,
        title=one.title,
    )
