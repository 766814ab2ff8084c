"""Inputs of the sandbox image: Containerfile, base image, package indexes, certificate authorities."""

import configparser
import gzip
import io
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import sha256

BASE: Final = "python:3.13-slim"
CONTAINERFILE: Final = Path(__file__).with_name("Containerfile")
CERTIFICATES: Final = Path("/usr/local/share/ca-certificates")
"""Directory of Debian and its derivatives for locally added certificate authorities."""

LOCKS: Final = (Path(__file__).with_name("build.txt"), Path(__file__).with_name("agent.txt"))
"""Requirements with hashes: the build tools, then the agent server and its dependencies."""

_AGENT_SERVER: Final = re.compile(r"^openhands-agent-server==(\S+)", re.MULTILINE)
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
_PIP_FILES: Final = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_REMOTE: Final = re.compile(r"^https?://", re.IGNORECASE)


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a build."""

    containerfile: bytes
    base: str
    locks: dict[str, bytes] = {}
    """File names and contents of the requirement files."""
    certificates: dict[str, bytes] = {}
    """File names, such as `NAME.crt`, and contents."""
    indexes: dict[str, str] = {}
    """URLs of package indexes, by the build argument's name; may contain passwords."""
    proxies: dict[str, str] = {}

    @property
    def fingerprint(self) -> str:
        """Hash of Containerfile, base, requirements and certificate authorities."""
        parts = [self.containerfile.decode(), self.base]
        files = {**self.locks, **self.certificates}
        parts += [f"{name} {text.hex()}" for name, text in sorted(files.items())]
        return sha256("\n".join(parts))

    @property
    def arguments(self) -> dict[str, str]:
        """Build arguments."""
        return {"BASE": self.base, **self.indexes, **self.proxies}

    def context(self) -> bytes:
        """Return the build context, as a compressed tar."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            files = {"Containerfile": self.containerfile, **self.locks, **self.certificates}
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                entry.mode = 0o644
                archive.addfile(entry, io.BytesIO(content))
        return gzip.compress(packed.getvalue(), mtime=0)


def find_recipe(environ: Mapping[str, str], *, base: str = BASE) -> Recipe:
    """Return the recipe with this machine's certificate authorities, indexes and proxies."""
    proxies = {name: value for name, value in environ.items() if name.upper() in _PROXIES and value}
    return Recipe(
        containerfile=CONTAINERFILE.read_bytes(),
        base=base,
        locks={file.name: file.read_bytes() for file in LOCKS},
        certificates=find_certificates(CERTIFICATES),
        indexes=find_indexes(environ, _pip_settings(environ)),
        proxies=proxies,
    )


def default_name() -> str:
    """Return the image's name; an image named `localhost/...` is never pulled from a registry."""
    found = _AGENT_SERVER.search(LOCKS[-1].read_text())
    return f"localhost/agentsvc-sandbox:{found[1] if found else 'latest'}"


def find_certificates(directory: Path) -> dict[str, bytes]:
    """Return the certificate files in a directory and below it, by flattened names."""
    found: dict[str, bytes] = {}
    if directory.is_dir():
        for file in sorted(directory.rglob("*.crt")):
            name = str(file.relative_to(directory)).replace(os.sep, "-")
            found[name] = file.read_bytes()
    return found


def find_indexes(environ: Mapping[str, str], pip: Mapping[str, str]) -> dict[str, str]:
    """Return the package indexes that pip and uv are configured with on this machine.

    Local directories are omitted, because a build cannot access them.
    """
    asked = {
        "INDEX": ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "index-url"),
        "MORE_INDEXES": (
            *("UV_INDEX", "UV_EXTRA_INDEX_URL"),
            *("PIP_EXTRA_INDEX_URL", "extra-index-url"),
        ),
        "FIND_LINKS": ("UV_FIND_LINKS", "PIP_FIND_LINKS", "find-links"),
    }
    found: dict[str, str] = {}
    for name, sources in asked.items():
        for source in sources:
            value = environ.get(source) or pip.get(source) or ""
            urls = [url for url in re.split(r"[\s,]+", value) if _REMOTE.match(url)]
            if urls:
                found[name] = " ".join(urls)
                break
    return found


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    files = [str(Path(file).expanduser()) for file in _PIP_FILES]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(environ["PIP_CONFIG_FILE"])
    parser = configparser.RawConfigParser()
    try:
        parser.read(files)
    except (configparser.Error, UnicodeDecodeError):
        return {}
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found
