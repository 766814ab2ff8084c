"""Holes of Python: which versions have them, and who says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentsvc.base.python_holes import HOLES, Version, known_vulnerabilities
from agentsvc.cli import cli


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ((3, 12, 1), ["CVE-2025-4517"]),
        ((3, 12, 10), ["CVE-2025-4517"]),
        ((3, 12, 11), []),
        ((3, 13, 3), ["CVE-2025-4517"]),
        ((3, 13, 4), []),
        ((3, 14, 0), []),
    ],
)
def test_a_version_has_the_holes_that_were_mended_later(version: Version, found: list[str]) -> None:
    assert [hole.cve for hole in known_vulnerabilities(version)] == found
    assert all(hole.matters for hole in HOLES)


def test_doctor_says_what_holes_the_running_python_has(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["doctor", "--data-dir", str(tmp_path / "data")]).output
    for hole in HOLES:
        assert (hole.cve in shown) == (hole in known_vulnerabilities())


def test_the_start_warns_of_the_holes_of_the_running_python(tmp_path: Path) -> None:
    """The port is none, so that the start ends when it has said so."""
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "agentsvc",
            "serve",
            "--host",
            "no.such.host.invalid",
            "--data-dir",
            str(tmp_path / "data"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "AGENTSVC_LOG__FORMAT": "json"},
    )
    assert ran.returncode != 0
    for hole in HOLES:
        assert (hole.cve in ran.stderr) == (hole in known_vulnerabilities())
    assert ('"level":"warning"' in ran.stderr.lower().replace(" ", "")) == bool(
        known_vulnerabilities()
    )
