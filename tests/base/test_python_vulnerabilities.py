"""Vulnerabilities of Python: which versions have them, and who says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentsvc.base.python_vulnerabilities import VULNERABILITIES, Version, known_vulnerabilities
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
def test_a_version_has_the_vulnerabilities_that_were_fixed_later(
    version: Version, found: list[str]
) -> None:
    assert [one.cve for one in known_vulnerabilities(version)] == found
    assert all(one.matters for one in VULNERABILITIES)


def test_doctor_says_what_vulnerabilities_the_running_python_has(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["doctor", "--data-dir", str(tmp_path / "data")]).output
    for one in VULNERABILITIES:
        assert (one.cve in shown) == (one in known_vulnerabilities())


def test_the_start_warns_of_the_vulnerabilities_of_the_running_python(tmp_path: Path) -> None:
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
    for one in VULNERABILITIES:
        assert (one.cve in ran.stderr) == (one in known_vulnerabilities())
    assert ('"level":"warning"' in ran.stderr.lower().replace(" ", "")) == bool(
        known_vulnerabilities()
    )
