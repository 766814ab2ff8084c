"""Parses the common parts of a repository's `devcontainer.json`, as defined by containers.dev. Pure.

The file is untrusted: invalid content is rejected with the reason.
"""

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from agentsvc.base import StartRefused, matching
from agentsvc.extension.web import EnvName

PLACES: Final = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""Paths of the file, in the order of the search."""
MAX_BYTES: Final = 64 * 1024
FOLDER: Final = "containerWorkspaceFolder"
"""The bash variable with the path of the workspace."""

_MAX: Final = 100
"""Maximum number of variables, of build arguments, and of features."""
_UNSUPPORTED: Final = (
    *("dockerComposeFile", "initializeCommand", "postAttachCommand", "mounts", "runArgs"),
    *("privileged", "capAdd", "securityOpt", "containerUser", "remoteUser", "workspaceFolder"),
    *("workspaceMount",),
)
"""Properties that are not supported; the user is told that they are ignored."""

# A string, a comment, or a comma before a closing bracket. Each match ends at the end of the text at
# the latest, and does not backtrack, so that no text takes long.
_COMMENTS: Final = re.compile(
    r'(?P<kept>"(?:[^"\\]|\\.?)*+"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL
)
_COMMAS: Final = re.compile(r'(?P<kept>"(?:[^"\\]|\\.?)*+"?)|,(?=\s*+[}\]])', re.DOTALL)
_VARIABLE: Final = re.compile(
    r"\$\{(localEnv|containerEnv|(?:local|container)WorkspaceFolder(?:Basename)?)"
    r"(?::([A-Za-z_]\w*))?(?::([^}]*))?\}",
    re.ASCII,
)

type Text = Annotated[str, matching(r"\A[^\0]*\Z", "without NUL")]
type Command = Text | list[Text] | dict[Text, Text | list[Text]]
type Values = Annotated[dict[EnvName, Text | None], Meta(max_length=_MAX)]
type Option = Text | bool | int | float | None
type Features = Annotated[dict[Text, Text | dict[Text, Option]], Meta(max_length=_MAX)]


class ImageBuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for building the image."""

    dockerfile: Text = ""
    context: Text = "."
    args: Annotated[dict[EnvName, Text], Meta(max_length=_MAX)] = {}
    target: Text = ""


class Devcontainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The supported properties of a file."""

    image: Text = ""
    build: ImageBuildOptions = ImageBuildOptions()
    docker_file: Text = ""
    """The property of `build` in older files."""
    context: Text = ""
    features: Features = {}
    override_feature_install_order: list[Text] = []
    container_env: Values = {}
    remote_env: Values = {}
    on_create_command: Command = ""
    update_content_command: Command = ""
    post_create_command: Command = ""
    post_start_command: Command = ""

    @property
    def of_image(self) -> list[str]:
        """The names of the properties that affect the image."""
        used = {"image": self.image, "build": self.built.dockerfile, "features": self.features}
        return [f"`{name}`" for name, value in used.items() if value]

    @property
    def built(self) -> ImageBuildOptions:
        """The options for building the image, from a file in the new or the old format."""
        if self.build.dockerfile or not self.docker_file:
            return self.build
        return msgspec.structs.replace(
            self.build, dockerfile=self.docker_file, context=self.context or "."
        )

    @property
    def set_up(self) -> list[str]:
        """The bash lines to run after the set-up."""
        commands = (self.on_create_command, self.update_content_command, self.post_create_command)
        return [line for command in commands for line in _lines(command)]

    @property
    def each_start(self) -> list[str]:
        """The bash lines to run at each start."""
        return _lines(self.post_start_command)

    @property
    def exports(self) -> list[str]:
        """The bash lines that set its variables; they require the variable FOLDER."""
        values = {**self.container_env, **self.remote_env}
        return [
            f"unset {name}" if value is None else f"export {name}={_quoted(value)}"
            for name, value in values.items()
        ]


def parse(content: bytes, name: str) -> tuple[Devcontainer, list[str]]:
    """Parse a file, and return it with the names of its unsupported properties.

    Raises StartRefused for an invalid file.
    """
    found = read(content, name, Devcontainer)
    everything = read(content, name, dict[str, Any])
    return found, [f"`{one}`" for one in _UNSUPPORTED if everything.get(one)]


def read[T](content: bytes, name: str, kind: type[T]) -> T:
    """Parse a file of JSON with comments; raises StartRefused."""
    if len(content) > MAX_BYTES:
        raise StartRefused(f"`{name}` is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = _COMMENTS.sub(_kept, content.decode("utf-8-sig"))
        return msgspec.json.decode(_COMMAS.sub(_kept, text), type=kind)
    except RecursionError as exc:
        raise StartRefused(f"`{name}` is nested too deeply") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise StartRefused(f"`{name}` cannot be used: {exc}") from exc


def beside(name: str, path: str) -> str:
    """Resolve a path relative to a file of the repository; raises StartRefused if it is outside."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if found.startswith(("/", "../")) or found == ".." or "\n" in found:
        raise StartRefused(f"`{name}` names a path outside of the repository: {path!a}")
    return found


def fill_args(args: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments of a build, with variables replaced by their defaults."""
    return {name: _VARIABLE.sub(lambda m: m[3] or "", text) for name, text in args.items()}


def _kept(match: re.Match[str]) -> str:
    return match["kept"] or " "


def _lines(command: Command) -> list[str]:
    if not command:
        return []
    if isinstance(command, dict):
        # Other tools run them in parallel; here they run in sequence, so that their output is not mixed.
        return [line for one in command.values() for line in _lines(one)]
    if isinstance(command, str):
        return [f"bash -c {shlex.quote(_VARIABLE.sub(_in_shell, command))} || exit $?"]
    return [" ".join(map(_quoted, command)) + " || exit $?"]


def _in_shell(match: re.Match[str]) -> str:
    """Return a variable as an expansion in a shell command."""
    kind, name, default = match.groups()
    if kind == "containerEnv":
        return f"${{{name}-{_escaped(default)}}}" if name else ""
    if kind == "localEnv":
        return default or ""
    return f"${{{FOLDER}##*/}}" if kind.endswith("Basename") else f"${FOLDER}"


def _quoted(text: str) -> str:
    """Return a text with variables as one quoted word of bash."""
    parts: list[str] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        parts += [text[end : match.start()], _word(match)]
        end = match.end()
    parts.append(text[end:])
    words = (part if number % 2 else _plain(part) for number, part in enumerate(parts))
    return "".join(words) or "''"


def _plain(text: str) -> str:
    return shlex.quote(text) if text else ""


def _word(match: re.Match[str]) -> str:
    return _plain(match[3] or "") if match[1] == "localEnv" else f'"{_in_shell(match)}"'


def _escaped(text: str | None) -> str:
    """Escape a text for use between double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", text or "")
