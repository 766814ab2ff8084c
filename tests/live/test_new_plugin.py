"""A backend in a package of its own: made, installed elsewhere, found by its entry point, checked."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "plugins" / "README.md").read_text()


def run(*command: str, cwd: Path, **environment: str) -> str:
    # The options of these tests mean nothing to a pytest without their plugins.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= environment
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stdout}\n{result.stderr}"
    return result.stdout


def make_environment(directory: Path, *projects: Path) -> Path:
    """Install projects where there is only what they ask for, and return its programs' place."""
    run(sys.executable, "-m", "venv", "--without-pip", "clean", cwd=directory)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    # Both are built by the same hatchling, which is not in what they are installed into.
    run(*pip, "install", "--no-compile", "--target", "builder", "hatchling", cwd=directory)
    options = ("--no-build-isolation", "--no-compile", "--no-deps", "--ignore-installed")
    run(
        *(*pip, "--python", "clean", "install", *options, *map(str, projects)),
        cwd=directory,
        PYTHONPATH=str(directory / "builder"),
    )
    [site] = directory.glob("clean/lib/python*/site-packages")
    link_needed(site)
    run(*pip, "--python", "clean", "check", cwd=directory)
    return directory / "clean" / "bin"


def link_needed(site: Path) -> None:
    """Link what the packages at a place ask for, and what that asks for, from what is installed here."""
    done = {"agentsvc"}
    waiting = [
        text
        for found in importlib.metadata.distributions(path=[str(site)])
        for text in found.requires or ()
        if needs(text, "" if found.name == "agentsvc" else "dev")
    ]
    while waiting:
        asked = Requirement(waiting.pop())
        key = f"{asked.name}[{','.join(sorted(asked.extras))}]"
        if asked.name in done or key in done:
            continue
        done.add(key)
        found = importlib.metadata.distribution(asked.name)
        for file in found.files or ():
            target = site / file
            if ".." not in file.parts and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(found.locate_file(file))).resolve())
        waiting += [text for text in found.requires or () if needs(text, *asked.extras)]


def needs(text: str, *extras: str) -> bool:
    """Say whether a requirement counts here, with any of these extras."""
    marker = Requirement(text).marker
    return marker is None or any(marker.evaluate({"extra": one}) for one in ("", *extras))


def test_the_commands_of_the_guide_make_a_package_that_keeps_the_contract(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[backends.small_vm]\n[sandboxes]\ndefault_backend = "small_vm"\n')
    [block] = re.findall(r"```sh\n(agentsvc plugins new .*?)```", GUIDE, re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    directory, programs = tmp_path, Path(sys.executable).parent
    told: dict[str, str] = {}
    for command in commands:
        program, *words = shlex.split(command)
        if program == "cd":
            directory /= words[0]
        elif program == "pip":
            # Everything but the two projects is there already, and is not asked of a registry again.
            programs = make_environment(tmp_path, ROOT, directory)
        else:
            module = {"agentsvc": "agentsvc", "pytest": "pytest"}[program]
            told[command] = run(
                *(str(programs / "python"), "-m", module, *words),
                cwd=directory,
                AGENTSVC_CONFIG=str(config),
                PYTHONDONTWRITEBYTECODE="1",
            )
    listed = told["agentsvc plugins list"]
    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("small_vm")] == [
        ["small_vm", "0.1.0", "agentsvc-small-vm"],
        ["small_vm", "small_vm", "1"],
        ["small_vm", "ok", "free"],
    ]
    assert " passed" in told["pytest"]
    assert " failed" not in told["pytest"]
    assert list(told) == [one for one in commands if one.split()[0] not in ("cd", "pip")]
