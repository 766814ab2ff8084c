"""Structs of GitHub's responses, and its GraphQL queries."""

from typing import Final

import msgspec
from msgspec import Struct

from agentsvc.git.model import Number


class User(Struct, frozen=True):
    """A user with what only the user tells."""

    id: int
    login: str
    avatar_url: str | None = None
    company: str | None = None
    name: str | None = None
    email: str | None = None


class Account(Struct, frozen=True):
    """A user or an organization."""

    login: str = ""
    type: str = ""


class RepositoryWire(Struct, frozen=True):
    """A repository."""

    id: int
    full_name: str
    private: bool = True
    stargazers_count: Number | None = None
    forks_count: Number | None = None
    pushed_at: str | None = None
    default_branch: str | None = None
    owner: Account = Account()


class Installation(Struct, frozen=True):
    """An app that was installed for an account."""

    id: int
    account: Account | None = None


class Installations(Struct, frozen=True):
    """A page of installations."""

    installations: list[Installation]
    total_count: Number | None = None


class InstalledRepositories(Struct, frozen=True):
    """A page of what an installation opens."""

    repositories: list[RepositoryWire]
    total_count: Number | None = None


class FoundRepositories(Struct, frozen=True):
    """A page of what a search found."""

    items: list[RepositoryWire]
    total_count: Number | None = None


class Commit(Struct, frozen=True):
    """A commit by its hash."""

    sha: str


class BranchWire(Struct, frozen=True):
    """A branch."""

    name: str
    commit: Commit
    protected: bool = False


class Entry(Struct, frozen=True):
    """What a directory has."""

    name: str
    path: str
    type: str


class Content(Struct, frozen=True):
    """What a file has."""

    content: str = ""
    encoding: str = ""


class Author(Struct, frozen=True):
    """When somebody did something."""

    date: str | None = None


class CommitBody(Struct, frozen=True):
    """A commit as git keeps it."""

    committer: Author | None = None


class Change(Struct, frozen=True):
    """A commit with what is in it."""

    commit: CommitBody


class PageInfo(Struct, frozen=True, rename="camel"):
    """Where the next page begins."""

    has_next_page: bool = False
    end_cursor: str | None = None


class Target(Struct, frozen=True, rename="camel"):
    """What a branch points to."""

    oid: str
    committed_date: str | None = None


class Ref(Struct, frozen=True, rename="camel"):
    """A branch with its last commit."""

    name: str
    target: Target
    branch_protection_rule: dict[str, str] | None = None


class Refs(Struct, frozen=True, rename="camel"):
    """A page of branches."""

    nodes: list[Ref]
    page_info: PageInfo = PageInfo()
    total_count: Number | None = None


class RefsHolder(Struct, frozen=True):
    """A repository with some of its branches."""

    refs: Refs | None = None


class RefsAnswer(Struct, frozen=True):
    """What `BRANCHES_QUERY` finds."""

    repository: RefsHolder | None = None


class InRepository(Struct, frozen=True, rename="camel"):
    """Where something is."""

    name_with_owner: str


class Rollup(Struct, frozen=True):
    """What became of all checks."""

    state: str | None = None


class HeadCommit(Struct, frozen=True, rename="camel"):
    """The last commit of a pull request."""

    status_check_rollup: Rollup | None = None


class Head(Struct, frozen=True):
    """That commit, as pull requests have it."""

    commit: HeadCommit


class Heads(Struct, frozen=True):
    """The last commits of a pull request, one at most."""

    nodes: list[Head] = []


class Review(Struct, frozen=True):
    """A review."""

    state: str = ""


class Reviews(Struct, frozen=True):
    """The reviews that want something."""

    nodes: list[Review] = []


class Issue(Struct, frozen=True):
    """An issue."""

    number: Number
    title: str
    repository: InRepository


class PullRequest(Struct, frozen=True):
    """A pull request with its state."""

    number: Number
    title: str
    repository: InRepository
    mergeable: str = "UNKNOWN"
    commits: Heads = Heads()
    reviews: Reviews = Reviews()


class PullRequests(Struct, frozen=True):
    """Pull requests; None for what the token may not see."""

    nodes: list[PullRequest | None] = []


class Issues(Struct, frozen=True):
    """Issues; None for what the token may not see."""

    nodes: list[Issue | None] = []


class Viewer(Struct, frozen=True, rename="camel"):
    """The user."""

    pull_requests: PullRequests = PullRequests()


class TasksAnswer(Struct, frozen=True):
    """What `TASKS_QUERY` finds."""

    viewer: Viewer
    search: Issues = Issues()


USER: Final = msgspec.json.Decoder(User)
ACCOUNTS: Final = msgspec.json.Decoder(list[Account])
REPOSITORY: Final = msgspec.json.Decoder(RepositoryWire)
REPOSITORIES: Final = msgspec.json.Decoder(list[RepositoryWire])
INSTALLATIONS: Final = msgspec.json.Decoder(Installations)
INSTALLED: Final = msgspec.json.Decoder(InstalledRepositories)
FOUND: Final = msgspec.json.Decoder(FoundRepositories)
BRANCHES: Final = msgspec.json.Decoder(list[BranchWire])
ENTRIES: Final = msgspec.json.Decoder(list[Entry])
CONTENT: Final = msgspec.json.Decoder(Content | list[Entry])
CHANGES: Final = msgspec.json.Decoder(list[Change])
REFS: Final = msgspec.json.Decoder(RefsAnswer)
TASKS: Final = msgspec.json.Decoder(TasksAnswer)

BRANCHES_QUERY: Final = """
query($owner: String!, $name: String!, $text: String!, $first: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    refs(refPrefix: "refs/heads/", query: $text, first: $first, after: $after,
         orderBy: {field: ALPHABETICAL, direction: ASC}) {
      totalCount
      pageInfo { hasNextPage endCursor }
      nodes {
        name
        target { oid ... on Commit { committedDate } }
        branchProtectionRule { id }
      }
    }
  }
}
"""

TASKS_QUERY: Final = """
query($issues: String!) {
  viewer {
    pullRequests(first: 50, states: OPEN, orderBy: {field: UPDATED_AT, direction: DESC}) {
      nodes {
        number
        title
        repository { nameWithOwner }
        mergeable
        commits(last: 1) { nodes { commit { statusCheckRollup { state } } } }
        reviews(last: 20, states: [CHANGES_REQUESTED, COMMENTED]) { nodes { state } }
      }
    }
  }
  search(query: $issues, type: ISSUE, first: 50) {
    nodes { ... on Issue { number title repository { nameWithOwner } } }
  }
}
"""
ISSUES_SEARCH: Final = "is:issue is:open assignee:@me sort:updated-desc"
