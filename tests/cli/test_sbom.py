"""What `agentsvc sbom` writes is a CycloneDX document of everything that is installed."""

import importlib.metadata
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from agentsvc.cli import cli
from tests.lock import LOCK, canonical, read_lock

_TYPES = {"application", "library", "platform"}
_PURL = re.compile(r"pkg:pypi/[a-z0-9-]+@[^\s/@]+")


def written(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["sbom", *options])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_document_has_what_cyclonedx_requires() -> None:
    found = written()
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert found["serialNumber"] == UUID(found["serialNumber"].removeprefix("urn:uuid:")).urn
    assert datetime.fromisoformat(found["metadata"]["timestamp"]).utcoffset() is not None
    components = [found["metadata"]["component"], *found["components"]]
    assert all(one["type"] in _TYPES and one["name"] and one["version"] for one in components)
    assert all(_PURL.fullmatch(one["purl"]) for one in components if one["type"] == "library")
    references = [one["bom-ref"] for one in components]
    assert len(set(references)) == len(references)
    for one in found["dependencies"]:
        assert {one["ref"], *one["dependsOn"]} <= set(references)


def test_every_installed_package_is_in_it_in_its_version() -> None:
    listed = {canonical(one["name"]): one["version"] for one in written()["components"]}
    for one in importlib.metadata.distributions():
        if one.name != "agentsvc":
            assert listed[canonical(one.name)] == one.version


def test_of_two_versions_the_one_that_is_imported_is_in_it_and_nothing_of_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "~roken-1.0.dist-info").mkdir()
    for number in (1, 2):
        there = tmp_path / f"{number}"
        (there / "twice-of.dist-info").mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: twice\nVersion: {number}\n"
        (there / "twice-of.dist-info/METADATA").write_text(head)
        monkeypatch.syspath_prepend(there)
    monkeypatch.syspath_prepend(tmp_path)
    assert [one["version"] for one in written()["components"] if one["name"] == "twice"] == ["2"]


def test_the_hashes_of_the_lock_stand_beside_what_was_installed(tmp_path: Path) -> None:
    file = tmp_path / "sbom.cdx.json"
    assert (
        CliRunner().invoke(cli, ["sbom", "--lock", str(LOCK), "--output", str(file)]).output == ""
    )
    found = json.loads(file.read_text())
    [sdk] = [one for one in found["components"] if one["name"] == "openhands-sdk"]
    [files] = sdk["externalReferences"]
    told = tuple(f"sha256:{one['content']}" for one in files["hashes"])
    assert told == read_lock()["openhands-sdk"].hashes
    assert {one["alg"] for one in files["hashes"]} == {"SHA-256"}


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["sbom", "--output", str(tmp_path / "none" / "file")])
    assert result.exit_code == 1
    assert "Could not open file" in result.output
