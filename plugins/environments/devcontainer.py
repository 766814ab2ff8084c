"""Reads a repository's `devcontainer.json`: its common parts, as containers.dev describes them. Pure.

The file is whatever a repository has put there, so that what does not fit is refused with the reason.
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
"""Where it is looked for, in this order."""
MAX_BYTES: Final = 64 * 1024
FOLDER: Final = "containerWorkspaceFolder"
"""The variable of bash that names the workspace."""

_MAX: Final = 100
"""How many variables, arguments, features or commands there may be."""
_FOREIGN: Final = (
    *("dockerComposeFile", "initializeCommand", "postAttachCommand", "mounts", "runArgs"),
    *("privileged", "capAdd", "securityOpt", "containerUser", "remoteUser", "workspaceFolder"),
    *("workspaceMount",),
)
"""What asks for something that is not done here, and is said to be left out."""

# A string, a comment, or a comma before what closes. Each ends at the latest with the text, and
# gives nothing back, so that no text takes long.
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
    """How the image is built."""

    dockerfile: Text = ""
    context: Text = "."
    args: Annotated[dict[EnvName, Text], Meta(max_length=_MAX)] = {}
    target: Text = ""


class Devcontainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a file says, as far as it is used."""

    image: Text = ""
    build: ImageBuildOptions = ImageBuildOptions()
    docker_file: Text = ""
    """As older files name that of `build`."""
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
        """What it says of the image, by the names in the file."""
        said = {"image": self.image, "build": self.built.dockerfile, "features": self.features}
        return [f"`{name}`" for name, value in said.items() if value]

    @property
    def built(self) -> ImageBuildOptions:
        """How the image is built, however old the file is."""
        if self.build.dockerfile or not self.docker_file:
            return self.build
        return msgspec.structs.replace(
            self.build, dockerfile=self.docker_file, context=self.context or "."
        )

    @property
    def set_up(self) -> list[str]:
        """The lines of bash that come after the set-up."""
        commands = (self.on_create_command, self.update_content_command, self.post_create_command)
        return [line for command in commands for line in _lines(command)]

    @property
    def each_start(self) -> list[str]:
        """The lines of bash for each start."""
        return _lines(self.post_start_command)

    @property
    def exports(self) -> list[str]:
        """The lines of bash that set its variables; they need that of FOLDER."""
        values = {**self.container_env, **self.remote_env}
        return [
            f"unset {name}" if value is None else f"export {name}={_quoted(value)}"
            for name, value in values.items()
        ]


def parse(content: bytes, name: str) -> tuple[Devcontainer, list[str]]:
    """Return what a file says, and what it asks for that is not done here.

    Raises StartRefused for what is no such file.
    """
    found = read(content, name, Devcontainer)
    everything = read(content, name, dict[str, Any])
    return found, [f"`{one}`" for one in _FOREIGN if everything.get(one)]


def read[T](content: bytes, name: str, kind: type[T]) -> T:
    """Return what is in a file of JSON with comments; raises StartRefused."""
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
    """Return a path in the repository that a file names from where it is; raises StartRefused."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if found.startswith(("/", "../")) or found == ".." or "\n" in found:
        raise StartRefused(f"`{name}` names a path outside of the repository: {path!a}")
    return found


def fill_args(args: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments of a build, in which no variable has a value but by its default."""
    return {name: _VARIABLE.sub(lambda m: m[3] or "", text) for name, text in args.items()}


def _kept(match: re.Match[str]) -> str:
    return match["kept"] or " "


def _lines(command: Command) -> list[str]:
    if not command:
        return []
    if isinstance(command, dict):
        # Beside each other elsewhere; one after another, their output can be told apart.
        return [line for one in command.values() for line in _lines(one)]
    if isinstance(command, str):
        return [f"bash -c {shlex.quote(_VARIABLE.sub(_in_shell, command))} || exit $?"]
    return [" ".join(map(_quoted, command)) + " || exit $?"]


def _in_shell(match: re.Match[str]) -> str:
    """Return a variable within a command that a shell reads."""
    kind, name, default = match.groups()
    if kind == "containerEnv":
        return f"${{{name}-{_escaped(default)}}}" if name else ""
    if kind == "localEnv":
        return default or ""
    return f"${{{FOLDER}##*/}}" if kind.endswith("Basename") else f"${FOLDER}"


def _quoted(text: str) -> str:
    """Return a text with variables as one word of bash."""
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
    """Return a text as it stands between double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", text or "")
