"""Files, changes and places of a conversation on the wire of the older generation."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from agentsvc.agentserver import GitChange, GitDiff
from agentsvc.conversations import ConversationView
from agentsvc.http.urls import Links
from agentsvc.http.v0.workspaces import Skipped

type Path = Annotated[str, Meta(max_length=4096)]

_STATUSES: Final = {"MOVED": "R", "ADDED": "A", "DELETED": "D", "UPDATED": "M"}
_WORKER: Final = "worker"


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which directory of the workspace to list; nothing stands for all of it."""

    path: Path = ""
    """Directory, relative to the workspace; empty: the workspace itself"""


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which file of the workspace to read."""

    file: Path
    """File, relative to the workspace, at most 4096 characters"""


class DiffQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which file of the workspace to compare."""

    path: Path
    """File, relative to the workspace, at most 4096 characters"""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """Files to write, each a part of the form with a file name."""

    files: Annotated[
        list[
            Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
        ],
        Meta(min_length=1),
    ]
    """The files, each a part of the form named `files` with a file name"""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file."""

    code: str
    """Text of the file"""


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """Where files were written, and which were not."""

    uploaded_files: list[str]
    """Absolute paths of the files that were written"""
    skipped_files: list[Skipped]
    """Files that were not written"""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs: modified, added, deleted or renamed."""

    status: str
    """`M` modified, `A` added, `D` deleted, `R` renamed"""
    path: str
    """The file, relative to the workspace"""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is and as it was."""

    modified: str
    """Text of the file as it is; empty if it is deleted"""
    original: str
    """Text of the file as it was; empty if it is new"""


class VscodeUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where the editor of a sandbox is, if it has one."""

    vscode_url: str | None
    """URL of the editor with its key in it; null if there is none, or the sandbox does not run"""


class WebHosts(msgspec.Struct, frozen=True, kw_only=True):
    """Where what an agent serves can be seen, and on which port it has to listen."""

    hosts: dict[str, int]
    """Port inside the sandbox by the URL at which it is seen; empty unless the sandbox runs"""


class Microagent(msgspec.Struct, frozen=True, kw_only=True):
    """Something the agent has learned, and the words that call for it."""

    name: str
    """Name of the skill"""
    type: str
    """`repo` is always told to the agent, `knowledge` when one of its triggers is said"""
    content: str
    """Text of the skill, in Markdown"""
    triggers: list[str] = []
    """Words in a message that call for the skill"""
    inputs: list[Any] = []
    """Always empty"""
    tools: list[str] = []
    """Always empty"""


class Microagents(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of a conversation has learned."""

    microagents: list[Microagent]
    """The skills"""


def from_changes(changes: list[GitChange]) -> list[Change]:
    """Return what differs as it is shown."""
    return [Change(status=_STATUSES.get(one.status, "M"), path=one.path) for one in changes]


def from_diff(diff: GitDiff) -> Diff:
    """Return both sides of a difference; one that does not exist is empty."""
    return Diff(modified=diff.modified or "", original=diff.original or "")


def from_skills(skills: list[dict[str, Any]]) -> Microagents:
    """Return what an agent has learned as it is shown."""
    found = [
        Microagent(
            name=str(skill.get("name") or ""),
            type=str(skill.get("type") or ""),
            content=str(skill.get("content") or ""),
            triggers=[str(word) for word in skill.get("triggers") or ()],
        )
        for skill in skills
    ]
    return Microagents(microagents=found)


def vscode_of(view: ConversationView, links: Links) -> VscodeUrl:
    """Return where the editor is, null where there is none or nothing runs."""
    folder = view.conversation.working_dir
    return VscodeUrl(vscode_url=links.editor(view.sandbox, folder) if view.sandbox else None)


def web_hosts_of(view: ConversationView, links: Links) -> WebHosts:
    """Return where what the agent serves can be seen, nowhere unless the sandbox runs."""
    sandbox = view.sandbox if view.agent_url else None
    if sandbox is None:
        return WebHosts(hosts={})
    workers = [end for end in sandbox.endpoints if end.name.startswith(_WORKER)]
    return WebHosts(hosts={links.worker(sandbox, end.name): end.port for end in workers})
