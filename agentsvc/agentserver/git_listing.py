"""List of changed files by git itself, for names that published agent servers cannot read. Pure.

They take a line of git apart at its spaces, and a name that git quotes for what it is.
"""

import re
from shlex import quote
from typing import Final

from agentsvc.agentserver.responses import GitChange

_LISTED: Final = "agentsvc: changes of "
_STATUSES: Final = {"A": "ADDED", "D": "DELETED"}
_ESCAPED: Final = re.compile(r"\\([0-7]{3}|.)")
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

# What is compared with is chosen as agent servers choose it, and so are repositories one level below.
_LIST: Final = """
export LC_ALL=C GIT_OPTIONAL_LOCKS=0
resolve() {{ git rev-parse -q --verify "$1^{{commit}}"; }}
list() (
  cd -- "$1" && git rev-parse --git-dir >/dev/null 2>&1 || exit 0
  printf '{listed}%s\\n' "$1"
  ref={ref} head=$(resolve HEAD)
  if [ "$ref" = HEAD ]; then base=$head
  elif [ -n "$ref" ]; then base=$(resolve "$ref") || exit 1
  else
    base=$(resolve "origin/$(git symbolic-ref -q --short HEAD)") && [ "$base" = "$head" ] &&
      [ -z "$(git status --porcelain -uno)" ] && base=
    for other in origin/HEAD main master; do
      [ -n "$base" ] || base=$(git merge-base HEAD "$other" 2>/dev/null)
    done
  fi
  base=${{base:-${{head:-4b825dc642cb6eb9a060e54bf8d69288fbee4904}}}}
  git -c core.quotePath=false --no-pager diff --name-status --no-renames --relative "$base" -- &&
    git -c core.quotePath=false ls-files --others --exclude-standard | sed "s/^/A$(printf '\\t')/"
)
cd -- {path} && list . || exit 1
for inner in */; do [ ! -e "$inner.git" ] || list "${{inner%/}}" || :; done
"""


def changes_command(path: str, ref: str | None) -> str:
    """Return the command that lists what differs below a directory; it fails for an unknown ref."""
    return _LIST.format(path=quote(path), ref=quote(ref or ""), listed=_LISTED)


def read_changes(text: str) -> list[GitChange]:
    """Return the changes that the command has listed, sorted by path."""
    found: dict[str, dict[str, str]] = {}
    place = "."
    for line in filter(None, text.split("\n")):
        if line.startswith(_LISTED):
            place = line.removeprefix(_LISTED)
            found.setdefault(place, {})
        else:
            status, _, name = line.partition("\t")
            found.setdefault(place, {})[_unquoted(name)] = _STATUSES.get(status, "UPDATED")
    outer = {
        path: status
        for path, status in found.pop(".", {}).items()
        if path.partition("/")[0] not in found
    }
    inner = {f"{at}/{path}": status for at, one in found.items() for path, status in one.items()}
    changes = {**outer, **inner}
    return [GitChange(status=changes[path], path=path) for path in sorted(changes)]


def _unquoted(name: str) -> str:
    """Return a name as it is; git quotes those with quotes, backslashes or control characters."""
    if not name.startswith('"'):
        return name
    return _ESCAPED.sub(_unescaped, name[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    said = found.group(1)
    return chr(int(said, 8)) if len(said) > 1 else _CONTROLS.get(said, said)
