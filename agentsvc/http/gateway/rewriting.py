"""Rewrites the path and query of a proxied request. Pure.

Published clients of several years call the agent server. Forms that newer ones dropped become the
forms of today, and a key in the query does not reach the sandbox.
"""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote, unquote_plus

import msgspec

EDITOR_KEY_PARAMETER: Final = "tkn"
"""The query parameter in which the editor's URL has the key; the editor wants it, too."""

_PATH_STYLE = re.compile(r"\A(/api/(?:git/(?:changes|diff)|file/(?:upload|download)))/(.+)\Z")
_OF_FILES = re.compile(r"\A/api/(?:git|file)/")
_USUAL_ROOTS: Final = ("/workspace/project", "/workspace")
"""Where front ends take every project, and what they upload, to be."""
DIRECTORIES: Final[dict[str, tuple[str, ...]]] = {
    "/api/conversations": ("workspace", "working_dir"),
    "/api/bash/start_bash_command": ("cwd",),
    "/api/bash/execute_bash_command": ("cwd",),
}
"""Where the bodies of requests say in which directory something is to work."""
_MAX_MEMBERS: Final = 300_000
_EDITOR_URL: Final = "/api/vscode/url"
_AGENT_PATH = re.compile(r"\A/(?:(?:sockets|api)/.|(?:alive|health|ready|server_info)\Z)")
_OWN_PATH = re.compile(r"\A/api/v[0-9]+(?:/|\Z)")


def is_agent_path(raw_path: str) -> bool:
    """Whether a path of this server is one that agent servers have, too."""
    return bool(_AGENT_PATH.match(raw_path)) and not _OWN_PATH.match(raw_path)


def to_agent(
    raw_path: str, raw_query: str, *, editor_url: str | None, working_dir: str
) -> tuple[str, str]:
    """Return path and query as the agent servers of today have them.

    `editor_url` is where the caller finds the editor: the agent server knows its own port only.
    `working_dir` is where the sandbox has its projects.
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
    """Return where a file is that clients take to be below the usual roots, as in containers."""
    if not working_dir or f"{working_dir}/".startswith(f"{_USUAL_ROOTS[-1]}/"):
        return path
    for root in _USUAL_ROOTS:
        if path == root or path.startswith(f"{root}/"):
            return working_dir.rstrip("/") + path.removeprefix(root)
    return path


def relocate_body(path: str, body: bytes, working_dir: str) -> bytes:
    """Return a body that names the directory where it is; all else in it stays as it was written.

    What is not as the agent server expects it is left for that to refuse, and what has more in it
    than any such body is left as it is.
    """
    # Each member has a colon; commas may be any number, in a text.
    if body.count(b":") > _MAX_MEMBERS:
        return body
    try:
        return _relocate_member(body, DIRECTORIES[path], working_dir)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body


def find_parameters(raw_query: str, name: str) -> tuple[str, ...]:
    """Return every value of a parameter."""
    if not raw_query:
        return ()
    pairs = (part.partition("=") for part in raw_query.split("&"))
    return tuple(unquote_plus(value) for key, _, value in pairs if unquote_plus(key) == name)


def drop_parameters(raw_query: str, is_dropped: Callable[[str, str], bool]) -> str:
    """Return the query without some parameters, what is left as it was written."""
    parts = []
    for part in raw_query.split("&"):
        name, _, value = part.partition("=")
        if not is_dropped(unquote_plus(name), unquote_plus(value)):
            parts.append(part)
    return "&".join(parts)


def set_parameter(raw_query: str, name: str, value: str) -> str:
    """Return the query with one value for a parameter, what is left as it was written."""
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
