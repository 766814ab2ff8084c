"""Features of dev containers: scripts in a directory of the operator, run as root while an image is built.

The `install.sh` of each gets its options as variables. A feature that is not in that directory is
rejected; nothing is downloaded.
"""

import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Final

import msgspec

from agentsvc.base import StartRefused

from .devcontainer import Devcontainer, read

_ID: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]*(?=(?::[\w.-]+)?(?:@[\w:]+)?\Z)")
_MANIFEST: Final = "devcontainer-feature.json"
_IN_CONTEXT: Final = ".agentsvc-features"
_IN_IMAGE: Final = f"/tmp/{_IN_CONTEXT}"  # noqa: S108  # of the image that is built
_INSTALL: Final = "set -a && . ./agentsvc.env && set +a && chmod +x install.sh && ./install.sh"
# Many features need the name of the image's user; this takes the user with the id 1000, or root.
_USERS: Final = """
_REMOTE_USER=$(sed -n 's/^\\([^:]*\\):[^:]*:1000:.*/\\1/p' /etc/passwd | head -n 1)
_REMOTE_USER=${_REMOTE_USER:-root}
_CONTAINER_USER=$_REMOTE_USER
eval _REMOTE_USER_HOME="~$_REMOTE_USER"
_CONTAINER_USER_HOME=$_REMOTE_USER_HOME
"""


class _Option(msgspec.Struct, frozen=True):
    default: str | bool = ""


class _Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The supported properties of a feature's manifest."""

    options: dict[str, _Option] = {}
    container_env: dict[str, str] = {}


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature from the directory, with the chosen options."""

    directory: Path
    options: dict[str, str]
    """Variables for its installation."""
    environment: dict[str, str]
    """Variables of the image after that."""


def find_features(directory: str, says: Devcontainer) -> list[Feature]:
    """Return the requested features in the order of installation; raises StartRefused. Blocks."""
    first = says.override_feature_install_order
    names = sorted(
        says.features,
        key=lambda name: first.index(_plain(name)) if _plain(name) in first else len(first),
    )
    places = {name: place for name in names if (place := _find_directory(directory, name))}
    if missing := [f"`{name[:100]}`" for name in names if name not in places]:
        raise StartRefused(
            f"Features that are not in this server's `features_dir`: {', '.join(missing)}"
        )
    found = []
    for name, place in places.items():
        chosen = says.features[name]
        manifest = read((place / _MANIFEST).read_bytes(), f"{place.name}/{_MANIFEST}", _Manifest)
        options: dict[str, object] = {
            one: option.default for one, option in manifest.options.items()
        }
        options |= {"version": chosen} if isinstance(chosen, str) else chosen
        found.append(
            Feature(
                directory=place,
                options={_variable(one): _text(value) for one, value in options.items()},
                environment=manifest.container_env,
            )
        )
    return found


def add_features(context: Path, features: Iterable[Feature]) -> None:
    """Add the files of features to the archive of a build's context. Blocks."""
    with tarfile.open(context, "a") as archive:
        for number, one in enumerate(features):
            archive.add(one.directory, f"{_IN_CONTEXT}/{number}")
            lines = "".join(f"{name}={quote(text)}\n" for name, text in one.options.items())
            content = f"{_USERS}{lines}".encode(errors="surrogateescape")
            info = tarfile.TarInfo(f"{_IN_CONTEXT}/{number}/agentsvc.env")
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))


def with_features(dockerfile: str, target: str, features: Iterable[Feature]) -> str:
    """Return a Dockerfile that installs features after its target stage, by default the last one."""
    lines = [dockerfile, *([f"FROM {target}"] if target else []), "USER root"]
    for number, one in enumerate(features):
        here = f"{_IN_IMAGE}/{number}"
        lines += [
            f"COPY {_IN_CONTEXT}/{number} {here}",
            f"RUN cd {here} && {_INSTALL}",
            *(f"ENV {name}={_in_quotes(text)}" for name, text in one.environment.items()),
        ]
    return "\n".join([*lines, f"RUN rm -rf {_IN_IMAGE}", ""])


def _find_directory(directory: str, name: str) -> Path | None:
    """Return the directory of a feature: by its whole name, or the last part of it."""
    plain = _plain(name)
    if not directory or not plain:
        return None
    for part in (plain, plain.rpartition("/")[2]):
        place = Path(directory) / part
        if (place / _MANIFEST).is_file() and (place / "install.sh").is_file():
            return place
    return None


def _plain(name: str) -> str:
    """Return the name of a feature without its version; empty if it is invalid."""
    found = _ID.match(name)
    return found[0] if found else ""


def _variable(option: str) -> str:
    """Return the name of the variable for an option."""
    return re.sub(r"^[\d_]+", "_", re.sub(r"\W", "_", option, flags=re.ASCII)).upper()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str("" if value is None else value)


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
