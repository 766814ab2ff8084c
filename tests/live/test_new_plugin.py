"""A backend in a package of its own: made, installed elsewhere, found by its entry point, checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path) -> str:
    # The options of these tests mean nothing to a pytest without their plugins.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stdout}\n{result.stderr}"
    return result.stdout


def test_a_new_package_is_found_by_its_entry_point_and_keeps_the_contract(tmp_path: Path) -> None:
    made = run(sys.executable, "-m", "agentsvc", "plugins", "new", "small_vm", cwd=tmp_path)
    package = tmp_path / made.strip()
    assert package.name == "agentsvc-small-vm"
    run(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    clean = tmp_path / "clean" / "bin"
    run(str(clean / "pip"), "install", "--quiet", str(ROOT), f"{package}[dev]", cwd=tmp_path)

    config = tmp_path / "config.toml"
    config.write_text('[backends.small_vm]\n[sandboxes]\ndefault_backend = "small_vm"\n')
    listed = run(str(clean / "agentsvc"), "plugins", "list", "--config", str(config), cwd=tmp_path)
    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("small_vm")] == [
        ["small_vm", "0.1.0", "agentsvc-small-vm"],
        ["small_vm", "small_vm", "1"],
        ["small_vm", "ok", "free"],
    ]
    told = run(str(clean / "pytest"), "-q", "-p", "no:cacheprovider", cwd=package)
    assert " passed" in told
    assert " failed" not in told
