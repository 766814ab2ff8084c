"""The lock that the set-up installs from: it is whole, and a file with another hash is refused."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.lock import (
    IMAGE,
    LOCK,
    PROJECT,
    ROOT,
    canonical,
    for_image,
    read_lock,
    required,
    select,
)
from tests.wheels import write_wheel

EXTRAS = sorted(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    - {"uvloop"}
)
"""What the set-up can install; uvloop is for who adds it to an installation."""


def test_every_package_has_a_version_and_hashes_and_no_address() -> None:
    lock = read_lock()
    assert len(lock) > 200
    assert [entry.name for entry in lock.values() if not entry.hashes] == []
    assert re.findall(r"://|--(?:extra-)?index|--find-links|@ ", LOCK.read_text()) == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_has_what_the_project_asks_for_in_a_version_that_fits(extra: str) -> None:
    lock = read_lock()
    for text in required([extra]):
        wanted = Requirement(text)
        assert wanted.specifier.contains(lock[canonical(wanted.name)].version), text


@pytest.mark.parametrize("extras", [["agent", "cli"], ["dev"], ["docker"], []])
def test_a_part_of_the_lock_has_all_that_its_packages_ask_for(extras: list[str]) -> None:
    part = {entry.name: entry.version for entry in select(read_lock(), extras)}
    waiting = [Requirement(text) for text in required(extras)]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        name = canonical(wanted.name)
        assert wanted.specifier.contains(part[name], prereleases=True), (wanted, part[name])
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        waiting += [
            one for one in _requirements_of(name) if _applies(one, frozenset(wanted.extras))
        ]
    assert PROJECT not in part


def _requirements_of(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    except importlib.metadata.PackageNotFoundError:
        # Of an older set-up: the build backend was not installed beside the project then.
        return []


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": one}) for one in ("", *extras))


def test_the_server_alone_is_a_small_part() -> None:
    names = {entry.name for entry in select(read_lock(), [])}
    assert "aiohttp" in names
    assert names & {"pytest", "mypy", "openhands-sdk", "litellm"} == set()


def test_the_image_of_sandboxes_is_made_of_parts_of_the_lock() -> None:
    parts = for_image(read_lock())
    assert {name: (IMAGE / name).read_text() for name in parts} == parts
    image = read_lock(IMAGE / "agent.txt")
    agent = {entry.name: entry.hashes for entry in select(read_lock(), ["agent"])}
    assert {"openhands-agent-server", "openhands-sdk", "openhands-tools"} < image.keys()
    assert {name: entry.hashes for name, entry in image.items()}.items() <= agent.items()


def test_an_extra_that_is_none_is_refused() -> None:
    with pytest.raises(SystemExit, match="there is no extra `agents`, only agent, "):
        select(read_lock(), ["agents"])


@pytest.mark.timeout(180)
def test_the_set_up_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """A checkout whose lock names one package that is at hand, with a hash that is not its own."""
    checkout = tmp_path / "checkout"
    for name in (".ci/setup", "tests/lock.py", "tests/__init__.py", ".python-version"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "agentsvc").mkdir()
    (checkout / "agentsvc" / "__init__.py").touch()
    (checkout / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\n[project]\nname = "agentsvc"\ndependencies = ["small"]\n'
        "[project.optional-dependencies]\ncli = []\n"
    )
    index = tmp_path / "index"
    index.mkdir()
    names = ("small", "editables", "setuptools")
    for name in names:
        write_wheel(index, name)
    entry = "{0}==1.0 \\\n    --hash=sha256:{1}\n"
    lock = "".join(entry.format(name, "0" * 64) for name in names)
    (checkout / ".ci" / "lock.txt").write_text(lock)
    result = subprocess.run(
        ["bash", str(checkout / ".ci" / "setup"), "install", "cli"],
        capture_output=True,
        text=True,
        check=False,
        env={
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.defpath}",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(index),
        },
    )
    assert result.returncode == 1, result.stderr
    assert "DO NOT MATCH THE HASHES" in result.stderr
    assert "error: the installation failed" in result.stderr
    assert list(checkout.glob(".venv/lib/python*/site-packages/small*")) == []
