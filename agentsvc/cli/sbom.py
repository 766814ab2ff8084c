"""`agentsvc sbom`: writes the installed packages as a CycloneDX document."""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from agentsvc import __version__
from agentsvc.base import dashed, new_id, now
from agentsvc.cli.options import EXISTING_FILE, example, output_option, read_given

_SPEC: Final = "1.6"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA: Final = re.compile(r"\bextra\s*==")
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(.*(?:\n .*)*)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
type _Hashes = Mapping[tuple[str, str], list[str]]


@click.command("sbom", epilog=example("agentsvc sbom --output sbom.cdx.json"))
@click.option(
    "--lock",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Requirements file that was installed from; its hashes are included.",
)
@output_option
def command(lock: Path | None, output: BinaryIO) -> None:
    """Write a software bill of materials of the installed packages, in CycloneDX 1.6."""
    text = json.dumps(document(_read_hashes(lock) if lock else {}), indent=2) + "\n"
    output.write(text.encode())


def document(hashes: _Hashes) -> dict[str, Any]:
    """Return the CycloneDX document of this Python environment."""
    # The first distribution of a name is imported; remains of a broken installation have no name.
    known = [one for one in distributions() if one.metadata.get("Name")]
    found = {_canonical(one.name): one for one in reversed(known)}
    others = [found[name] for name in sorted(found.keys() - {"agentsvc"})]
    python = {"type": "platform", "bom-ref": "python", "name": platform.python_implementation()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": _SPEC,
        "serialNumber": f"urn:uuid:{dashed(new_id())}",
        "version": 1,
        "metadata": {
            "timestamp": now().isoformat(timespec="seconds"),
            "component": _entry("application", "agentsvc", __version__),
        },
        "components": [
            {**python, "version": platform.python_version()},
            *(_component(one, hashes) for one in others),
        ],
        "dependencies": [
            {"ref": _purl_of(one), "dependsOn": sorted(_needs(one, found))}
            for one in found.values()
        ],
    }


def _entry(kind: str, name: str, version: str) -> dict[str, Any]:
    purl = _purl(name, version)
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _component(one: Distribution, hashes: _Hashes) -> dict[str, Any]:
    component = _entry("library", one.name, one.version)
    if expression := one.metadata.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    if known := hashes.get((_canonical(one.name), one.version)):
        component["externalReferences"] = [
            {
                "type": "distribution",
                "url": component["purl"],
                "comment": "the files of this release; one of them was installed",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in known],
            }
        ]
    return component


def _needs(one: Distribution, found: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield the installed ones of a package's dependencies, without those of extras."""
    names = set()
    for text in one.requires or ():
        requirement, _, marker = text.partition(";")
        if not _EXTRA.search(marker) and (match := _NAME.match(requirement)):
            names.add(_canonical(match.group()))
    return (_purl_of(found[name]) for name in names & found.keys())


def _read_hashes(lock: Path) -> _Hashes:
    return {
        (_canonical(name), version): _HASH.findall(rest)
        for name, version, rest in _LOCKED.findall(read_given(lock))
    }


def _purl_of(one: Distribution) -> str:
    return _purl(one.name, one.version)


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{_canonical(name)}@{version}"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
