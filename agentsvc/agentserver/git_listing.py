"""Listing of changed files by git itself, for names that agent servers parse wrongly. Pure.

Published agent servers split the lines of git's output at spaces, and do not unquote quoted names.
"""

from shlex import quote
from typing import Final

from agentsvc.agentserver.responses import GitChange

_HEADING: Final = "agentsvc: changes of "
_STATUSES: Final = {"A": "ADDED", "D": "DELETED"}

# The base commit is chosen as agent servers choose it, and repositories one level below are included.
# Names are quoted, because agent servers read output in chunks, which may end within a character.
_LIST: Final = """
export LC_ALL=C GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0
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
    [ -n "$base" ] || default=$(git symbolic-ref -q --short refs/remotes/origin/HEAD ||
      git remote show origin | sed -n 's|.*HEAD branch: \\([^(]\\)|origin/\\1|p')
    if [ -n "$base" ]; then :
    elif [ -n "$default" ]; then base=$(git merge-base HEAD "$default" || resolve "$default")
    elif base=$(resolve main || resolve master); then
      git merge-base --is-ancestor "$base" HEAD || base=
    fi
  fi
  base=${{base:-${{head:-4b825dc642cb6eb9a060e54bf8d69288fbee4904}}}}
  git -c core.quotePath=true --no-pager diff --name-status --no-renames --relative "$base" -- &&
    git -c core.quotePath=true ls-files --others --exclude-standard | sed "s/^/A$(printf '\\t')/"
)
cd -- {path} && list . || exit 1
for inner in */; do [ ! -e "$inner.git" ] || list "${{inner%/}}" || :; done
"""


def changes_command(path: str, ref: str | None) -> str:
    """Return the command that lists the changes below a directory; it fails for an unknown ref."""
    return _LIST.format(path=quote(path), ref=quote(ref or ""), listed=_HEADING)


def read_changes(text: str) -> list[GitChange]:
    """Parse the output of the command into changes, sorted by path."""
    found: dict[str, dict[str, str]] = {}
    place = "."
    for line in filter(None, text.split("\n")):
        if line.startswith(_HEADING):
            place = line.removeprefix(_HEADING)
            found.setdefault(place, {})
        else:
            status, _, name = line.partition("\t")
            found.setdefault(place, {})[_unquote(name)] = _STATUSES.get(status, "UPDATED")
    outer = {
        path: status
        for path, status in found.pop(".", {}).items()
        if path.partition("/")[0] not in found
    }
    inner = {f"{at}/{path}": status for at, one in found.items() for path, status in one.items()}
    changes = {**outer, **inner}
    return [GitChange(status=changes[path], path=path) for path in sorted(changes)]


def _unquote(name: str) -> str:
    """Unquote a name: git quotes a name that is not plain ASCII, with the escapes of C."""
    if not name.startswith('"'):
        return name
    quoted = name[1:-1].encode().decode("unicode_escape", errors="replace")
    return quoted.encode("latin-1", errors="replace").decode(errors="replace")
