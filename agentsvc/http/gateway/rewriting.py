"""Rewrites the path and query of a proxied request. Pure.

Published clients of several years call the agent server. Paths that newer agent servers dropped are
rewritten to current ones, and keys in the query are removed.
"""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote, unquote_plus

import msgspec

EDITOR_KEY_PARAMETER: Final = "tkn"
"""Query parameter with the session key in the editor's URL; the editor checks it, too."""

_PATH_STYLE = re.compile(r"\A(/api/(?:git/(?:changes|diff)|file/(?:upload|download)))/(.+)\Z")
_OF_FILES = re.compile(r"\A/api/(?:git|file)/")
_USUAL_ROOTS: Final = ("/workspace/project", "/workspace")
"""Directories in which front ends expect all projects and uploads."""
DIRECTORIES: Final[dict[str, tuple[str, ...]]] = {
    "/api/conversations": ("workspace", "working_dir"),
    "/api/bash/start_bash_command": ("cwd",),
    "/api/bash/execute_bash_command": ("cwd",),
}
"""Location of the working directory in request bodies, by path."""
_MAX_MEMBERS: Final = 300_000
_EDITOR_URL: Final = "/api/vscode/url"
_AGENT_PATH = re.compile(r"\A/(?:(?:sockets|api)/.|(?:alive|health|ready|server_info)\Z)")
_OWN_PATH = re.compile(r"\A/api/v[0-9]+(?:/|\Z)")


def is_agent_path(raw_path: str) -> bool:
    """Whether a path at the root may be meant for an agent server."""
    return bool(_AGENT_PATH.match(raw_path)) and not _OWN_PATH.match(raw_path)


def to_agent(
    raw_path: str, raw_query: str, *, editor_url: str | None, working_dir: str
) -> tuple[str, str]:
    """Rewrite a path and query to the form that current agent servers accept.

    `editor_url` is the editor's public URL, which the agent server does not know. `working_dir` is
    the directory of the sandbox's projects.
    """
    if styled := _PATH_STYLE.match(raw_path):
        path = "/" + unquote(styled.group(2)).lstrip("/")
        raw_path, raw_query = styled.group(1), set_parameter(raw_query, "path", path)
    if _OF_FILES.match(raw_path):
        return raw_path, _relocate_parameter(raw_query, working_dir)
    if raw_path == _EDITOR_URL and editor_url:
        return raw_path, set_parameter(raw_query, "base_url", editor_url)
    return raw_path, raw_query


def relocate(path: str, working_dir: str) -> str:
    """Map a path below the directories of containers to the sandbox's working directory."""
    if not working_dir or f"{working_dir}/".startswith(f"{_USUAL_ROOTS[-1]}/"):
        return path
    for root in _USUAL_ROOTS:
        if path == root or path.startswith(f"{root}/"):
            return working_dir.rstrip("/") + path.removeprefix(root)
    return path


def relocate_body(path: str, body: bytes, working_dir: str) -> bytes:
    """Relocate the working directory in a request body; everything else stays unchanged.

    An invalid body is unchanged, so that the agent server rejects it; so is an excessively large
    one.
    """
    # Each member has a colon; commas also occur in texts.
    if body.count(b":") > _MAX_MEMBERS:
        return body
    try:
        return _relocate_member(body, DIRECTORIES[path], working_dir)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body


def find_parameters(raw_query: str, name: str) -> tuple[str, ...]:
    """Return all values of a query parameter."""
    if not raw_query:
        return ()
    pairs = (part.partition("=") for part in raw_query.split("&"))
    return tuple(unquote_plus(value) for key, _, value in pairs if unquote_plus(key) == name)


def drop_parameters(raw_query: str, is_dropped: Callable[[str, str], bool]) -> str:
    """Remove parameters from a query; the others keep their encoding."""
    parts = []
    for part in raw_query.split("&"):
        name, _, value = part.partition("=")
        if not is_dropped(unquote_plus(name), unquote_plus(value)):
            parts.append(part)
    return "&".join(parts)


def set_parameter(raw_query: str, name: str, value: str) -> str:
    """Set a parameter of a query to one value; the others keep their encoding."""
    rest = drop_parameters(raw_query, lambda key, _: key == name)
    pair = f"{name}={quote(value, safe='/')}"
    return f"{rest}&{pair}" if rest else pair


def _relocate_parameter(raw_query: str, working_dir: str) -> str:
    paths = find_parameters(raw_query, "path")
    if len(paths) != 1 or (found := relocate(paths[0], working_dir)) == paths[0]:
        return raw_query
    return set_parameter(raw_query, "path", found)


def _relocate_member(body: bytes, names: tuple[str, ...], working_dir: str) -> bytes:
    members = _MEMBERS.decode(body)
    name, *rest = names
    if name not in members:
        return body
    inner = bytes(members[name])
    if rest:
        found = _relocate_member(inner, tuple(rest), working_dir)
    else:
        text = _TEXT.decode(inner)
        moved = relocate(text, working_dir)
        found = inner if moved == text else msgspec.json.encode(moved)
    if found == inner:
        return body
    members[name] = msgspec.Raw(found)
    return msgspec.json.encode(members)


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
