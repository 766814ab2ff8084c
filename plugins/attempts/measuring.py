"""Measures the changes of an attempt, compared with its files at the start.

Both states are stored as git trees in a separate object directory: the repository of the agent is not
changed, and uncommitted changes are included.
"""

import re
from shlex import quote
from typing import Final

import msgspec

from agentsvc.extension.commands import AgentServer

_SECONDS: Final = 120.0
_TREE: Final = """
cd {directory} || exit 3
export LC_ALL=C GIT_OPTIONAL_LOCKS=0
own="$HOME/.agentsvc-attempt"
mkdir -p "$own/objects" && objects=$(git rev-parse --git-path objects) || exit 3
export GIT_ALTERNATE_OBJECT_DIRECTORIES=$(cd "$objects" && pwd)
rm -f "$own/index"; cp "$(git rev-parse --git-path index)" "$own/index" 2>/dev/null
export GIT_OBJECT_DIRECTORY="$own/objects" GIT_INDEX_FILE="$own/index"
git add --all --ignore-errors . >/dev/null 2>&1
"""
_BEGIN: Final = _TREE + "git write-tree"
_COMPARE: Final = _TREE + "git diff --cached --no-ext-diff --no-renames --shortstat {base}"
_TREE_ID: Final = re.compile(r"\A[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_COUNTS: Final = re.compile(r"([0-9]{1,9}) (file|insertion|deletion)")


class DiffSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the difference between two trees."""

    files: int
    additions: int
    deletions: int


async def write_tree(agent: AgentServer, directory: str) -> str:
    """Store the files of a workspace as a git tree and return its id; empty without a repository.

    Raises as `AgentServer.run_command`, like `compare_files`.
    """
    script = _BEGIN.format(directory=quote(directory))
    result = await agent.run_command(script, time_limit=_SECONDS)
    tree = result.stdout.strip()
    return tree if result.exit_code == 0 and _TREE_ID.match(tree) else ""


async def compare_files(agent: AgentServer, directory: str, base: str) -> DiffSize | None:
    """Return the size of the changes since a tree, or None if git fails."""
    script = _COMPARE.format(directory=quote(directory), base=base)
    result = await agent.run_command(script, time_limit=_SECONDS)
    if result.exit_code != 0:
        return None
    # The output comes from the sandbox and is untrusted.
    counts = {kind: int(number) for number, kind in _COUNTS.findall(result.stdout[:200])}
    return DiffSize(
        files=counts.get("file", 0),
        additions=counts.get("insertion", 0),
        deletions=counts.get("deletion", 0),
    )
