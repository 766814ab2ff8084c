"""A table of git hosts: their webhook events and API calls for issues and pull requests.

Parts are named as in the placeholders of a prompt: `issue.user.login`. In a path, `{repo}` is the
repository, `{number}` an issue or a pull request, and so on; values are percent-encoded.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.extension.conversations import Provider
from agentsvc.extension.git import Lookup, parts


class Kind(StrEnum):
    """The kind of an event at a host."""

    LABEL = "label"
    """A label was added to an issue"""
    COMMENT = "comment"
    """A comment was added to an issue or a pull request"""
    REVIEW = "review"
    """A pull request was reviewed"""
    CLOSED = "closed"
    """A pull request was merged or closed"""
    CHECK = "check"
    """A check of a commit has failed"""
    OPENED = "opened"
    """An issue or a pull request was opened"""


class Rule(msgspec.Struct, frozen=True):
    """A pattern of deliveries, and the event that they report."""

    event: str
    """Pattern of the event's name and its action."""
    kind: Kind
    when: Mapping[str, str] = {}
    """Required values of parts; `*` for any that is not empty."""
    number: str = "issue.number"
    pull: str = ""
    """The part that exists only for a pull request; `*` if it always is one."""
    id: str = ""
    """The part that identifies the event; of a check, its commit."""
    actor: str = "sender.login"
    text: str = ""


type Body = Callable[[Mapping[str, str]], Mapping[str, Any]]
"""Builds a request body from values."""


def _body(of: Mapping[str, str]) -> Mapping[str, Any]:
    return {"body": of["text"]}


def _raw_body(of: Mapping[str, str]) -> Mapping[str, Any]:
    return {"content": {"raw": of["text"]}}


def _pull_body(of: Mapping[str, str], **more: Any) -> Mapping[str, Any]:
    return {"head": of["branch"], "base": of["base"], "title": of["title"], **_body(of), **more}


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of git host."""

    event_headers: tuple[str, ...] = ()
    event: str = "action"
    """Part of a delivery that names its action."""
    rules: tuple[Rule, ...]
    full_name: str = "full_name"
    """Part of a repository that is its current name."""
    updated: Lookup
    """The issues that have changed; the path of each is its number below `issues`."""
    comments: Lookup
    """The comments of an issue; new ones are posted to the same path."""
    pull_comments: tuple[Lookup, ...]
    comment: Body = _body
    edit: str = "PATCH {repo}/issues/comments/{id}"
    """The request that replaces the text of a comment."""
    labelled: Lookup | None
    access: Lookup
    may_write: frozenset[str]
    pulls: Lookup
    """The pull requests of a branch. The path of each is its number below this one; new ones are posted to it."""
    open_pull: Body
    is_open: str
    """The state of an open pull request."""
    below_pulls: str = "issues"
    """Path segment that contains the comments of a pull request."""
    commit: Lookup | None = None
    """Finds the full hash of a commit; None if a pull request contains it."""
    checks: tuple[Lookup, ...]


_ISSUE: Final = parts(
    "number title text=body author=user.login labels at=updated_at created=created_at "
    "state pull=pull_request"
)
_COMMENT: Final = parts("id text=body author=user.login actor=user.login at=created_at path")
_PULL: Final = parts(
    "number title text=body author=user.login created=created_at url=html_url state "
    "branch=head.ref commit=head.sha base=base.ref source=head.repo.full_name "
    "target=base.repo.full_name"
)
_COMMENTS: Final = Lookup("{repo}/issues/{number}/comments", _COMMENT)
_REVIEWS: Final = Lookup(
    "{repo}/pulls/{number}/reviews", {**_COMMENT, "at": "submitted_at", "review": "state"}
)
_OF_PULLS: Final = partial(Rule, number="pull_request.number", pull="*")
_COMMENTED: Final = Rule(
    "issue_comment.created",
    Kind.COMMENT,
    pull="issue.pull_request",
    id="comment.id",
    actor="comment.user.login",
    text="comment.body",
)
_OPENED: Final = (
    Rule("issues.opened", Kind.OPENED),
    _OF_PULLS("pull_request.opened", Kind.OPENED),
)
_CLOSED: Final = _OF_PULLS("pull_request.closed", Kind.CLOSED)
_FAILED: Final = Rule("status", Kind.CHECK, when={"state": "failure"}, id="sha")

_GITHUB: Final = Host(
    event_headers=("X-GitHub-Event",),
    rules=(
        Rule("issues.labeled", Kind.LABEL, id="label.name"),
        *_OPENED,
        _COMMENTED,
        *(
            _OF_PULLS(event, Kind.REVIEW, id=f"{of}.id", actor=f"{of}.user.login")
            for event, of in (
                ("pull_request_review.submitted", "review"),
                ("pull_request_review_comment.created", "comment"),
            )
        ),
        _CLOSED,
        Rule(
            "check_run.completed",
            Kind.CHECK,
            when={"check_run.conclusion": "failure"},
            id="check_run.head_sha",
        ),
        _FAILED,
    ),
    updated=Lookup("{repo}/issues?state=open&since={since}&sort=updated&direction=asc", _ISSUE),
    comments=_COMMENTS,
    pull_comments=(_COMMENTS, Lookup("{repo}/pulls/{number}/comments", _COMMENT), _REVIEWS),
    labelled=Lookup(
        "{repo}/issues/{number}/events",
        {"label": "label.name", "actor": "actor.login"},
        when={"event": "labeled"},
    ),
    access=Lookup("{repo}/collaborators/{actor}/permission", {"access": "permission"}),
    may_write=frozenset({"admin", "maintain", "write", "owner"}),
    pulls=Lookup("{repo}/pulls?head={owner}:{branch}&state=all", _PULL),
    open_pull=partial(_pull_body, draft=True),
    is_open="open",
    checks=(
        Lookup(
            "{repo}/commits/{commit}/check-runs",
            {"name": "name"},
            items="check_runs",
            when={"conclusion": "failure"},
        ),
        Lookup(
            "{repo}/commits/{commit}/status",
            {"name": "context"},
            items="statuses",
            when={"state": "failure"},
        ),
    ),
)

_FORGEJO: Final = msgspec.structs.replace(
    _GITHUB,
    event_headers=("X-Forgejo-Event", "X-Gitea-Event"),
    rules=(
        Rule("issues.label_updated", Kind.LABEL, id="issue.labels"),
        Rule("issues.opened", Kind.LABEL, id="issue.labels"),
        *_OPENED,
        msgspec.structs.replace(_COMMENTED, pull="is_pull"),
        _OF_PULLS("pull_request_*.reviewed", Kind.REVIEW, id="pull_request.updated_at"),
        _CLOSED,
        _FAILED,
    ),
    updated=Lookup("{repo}/issues?state=open&type=issues&since={since}", _ISSUE),
    labelled=Lookup(
        "{repo}/issues/{number}/timeline",
        {"label": "label.name", "actor": "user.login"},
        when={"type": "label", "body": "1"},
    ),
    pull_comments=(_COMMENTS, _REVIEWS),
    pulls=Lookup("{repo}/pulls?state=all&sort=recentupdate", _PULL),
    open_pull=lambda of: _pull_body(of, title=f"WIP: {of['title']}"),
    checks=(
        Lookup("{repo}/commits/{commit}/statuses", {"name": "context"}, when={"status": "failure"}),
    ),
)

_NOTE: Final = parts("id text=body author=author.username actor=author.id at=created_at")
_GITLAB_ISSUE: Final = parts(
    "number=iid title text=description author=author.username labels at=updated_at "
    "created=created_at state"
)
_MERGE: Final = parts(
    "number=iid title text=description author=author.username created=created_at "
    "url=web_url state branch=source_branch commit=sha base=target_branch "
    "source=source_project_id target=target_project_id"
)
_NOTED: Final = partial(Rule, event="note*", id="object_attributes.id", actor="user.id")
_OF_MERGES: Final = partial(Rule, number="object_attributes.iid", pull="*")
_OLDEST: Final = "sort=asc&order_by=created_at"


_GITLAB: Final = Host(
    event="object_attributes.action",
    rules=(
        Rule("issue.*", Kind.LABEL, number="object_attributes.iid", id="labels", actor="user.id"),
        Rule("issue.open", Kind.OPENED, number="object_attributes.iid"),
        _OF_MERGES("merge_request.open", Kind.OPENED),
        *(
            _NOTED(
                kind=Kind.COMMENT,
                when={"object_attributes.noteable_type": of},
                number=number,
                pull=pull,
                text="object_attributes.note",
            )
            for of, number, pull in (
                ("Issue", "issue.iid", ""),
                ("MergeRequest", "merge_request.iid", "*"),
            )
        ),
        _NOTED(
            kind=Kind.REVIEW,
            when={"object_attributes.type": "DiffNote"},
            number="merge_request.iid",
            pull="*",
        ),
        *(
            _OF_MERGES(f"merge_request.{action}", Kind.CLOSED, actor="user.id")
            for action in ("close", "merge")
        ),
        Rule(
            "pipeline",
            Kind.CHECK,
            when={"object_attributes.status": "failed"},
            id="object_attributes.sha",
        ),
    ),
    full_name="path_with_namespace",
    updated=Lookup(
        "{repo}/issues?state=opened&updated_after={since}&order_by=updated_at&sort=asc",
        _GITLAB_ISSUE,
    ),
    comments=Lookup("{repo}/{below}/{number}/notes?" + _OLDEST, _NOTE, when={"system": "false"}),
    pull_comments=(
        Lookup(
            "{repo}/merge_requests/{number}/notes?" + _OLDEST,
            {**_NOTE, "path": "position.new_path"},
            when={"system": "false"},
        ),
    ),
    edit="PUT {repo}/{below}/{number}/notes/{id}",
    labelled=Lookup(
        "{repo}/issues/{number}/resource_label_events",
        {"label": "label.name", "actor": "user.id"},
        when={"action": "add"},
    ),
    access=Lookup("{repo}/members/all/{actor}", {"access": "access_level"}),
    may_write=frozenset({"30", "40", "50", "60"}),
    pulls=Lookup("{repo}/merge_requests?source_branch={branch}", _MERGE),
    open_pull=lambda of: {
        "title": f"Draft: {of['title']}",
        "source_branch": of["branch"],
        "target_branch": of["base"],
        "description": of["text"],
    },
    is_open="opened",
    below_pulls="merge_requests",
    checks=(
        Lookup(
            "{repo}/repository/commits/{commit}/statuses",
            {"name": "name"},
            when={"status": "failed"},
        ),
    ),
)

_BB_COMMENT: Final = parts(
    "id text=content.raw author=user.display_name actor=user.uuid at=created_on path=inline.path"
)
_BB_ISSUE: Final = parts(
    "number=id title text=content.raw author=reporter.display_name at=updated_on "
    "created=created_on state"
)
_BB_PULL: Final = parts(
    "number=id title text=description author=author.display_name created=created_on "
    "url=links.html.href state branch=source.branch.name commit=source.commit.hash "
    "base=destination.branch.name source=source.repository.full_name "
    "target=destination.repository.full_name"
)


_BB_RULE: Final = partial(Rule, id="comment.id", actor="comment.user.uuid")
_BITBUCKET: Final = Host(
    event_headers=("X-Event-Key",),
    event="",
    rules=(
        *(
            rule
            for of, pull in (("issue", ""), ("pullrequest", "*"))
            for rule in (
                Rule(f"{of}:created", Kind.OPENED, number=f"{of}.id", pull=pull),
                _BB_RULE(
                    f"{of}:comment_created",
                    Kind.COMMENT,
                    number=f"{of}.id",
                    pull=pull,
                    text="comment.content.raw",
                ),
            )
        ),
        _BB_RULE(
            "pullrequest:comment_created",
            Kind.REVIEW,
            when={"comment.inline": "*"},
            number="pullrequest.id",
            pull="*",
        ),
        *(
            Rule(f"pullrequest:{end}", Kind.CLOSED, number="pullrequest.id", pull="*")
            for end in ("fulfilled", "rejected")
        ),
        Rule(
            "repo:commit_status_*",
            Kind.CHECK,
            when={"commit_status.state": "FAILED"},
            id="commit_status.links.commit.href",
        ),
    ),
    updated=Lookup(
        '{repo}/issues?q=updated_on >= {since} AND state != "closed"&sort=updated_on',
        _BB_ISSUE,
        items="values",
    ),
    comments=Lookup("{repo}/{below}/{number}/comments", _BB_COMMENT, items="values"),
    pull_comments=(Lookup("{repo}/pullrequests/{number}/comments", _BB_COMMENT, items="values"),),
    comment=_raw_body,
    edit="PUT {repo}/{below}/{number}/comments/{id}",
    labelled=None,
    access=Lookup(
        '/workspaces/{owner}/permissions/repositories/{name}?q=user.uuid="{actor}"',
        {"access": "permission", "actor": "user.uuid"},
        items="values",
    ),
    may_write=frozenset({"admin", "write"}),
    pulls=Lookup('{repo}/pullrequests?q=source.branch.name="{branch}"', _BB_PULL, items="values"),
    open_pull=lambda of: {
        "title": of["title"],
        "source": {"branch": {"name": of["branch"]}},
        "destination": {"branch": {"name": of["base"]}},
        "description": of["text"],
        "draft": True,
    },
    is_open="OPEN",
    below_pulls="pullrequests",
    commit=Lookup("{repo}/commit/{commit}", {"commit": "hash"}),
    checks=(
        Lookup(
            "{repo}/commit/{commit}/statuses",
            {"name": "name"},
            items="values",
            when={"state": "FAILED"},
        ),
    ),
)

HOSTS: Final[Mapping[Provider, Host]] = {
    Provider.GITHUB: _GITHUB,
    Provider.GITLAB: _GITLAB,
    Provider.FORGEJO: _FORGEJO,
    Provider.BITBUCKET: _BITBUCKET,
}
