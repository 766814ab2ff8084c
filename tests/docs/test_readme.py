import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentsvc.cli import COMMANDS, cli, plugincommands
from tests.docs.generate import render_readme

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text()
FIRST_SCREEN = README[: README.index("\n## ")]
COMMAND_BLOCKS = re.findall(r"```sh\n(.*?)```", FIRST_SCREEN, re.DOTALL)


def test_the_first_screen_has_three_sentences_and_two_commands() -> None:
    introduction = FIRST_SCREEN.split("\n\n")[1]
    assert len(re.findall(r"[.!?](?=\s|$)", introduction)) == 3
    assert COMMAND_BLOCKS == ["bash .ci/setup run\n", "bash .ci/setup test\n"]
    assert len(FIRST_SCREEN.splitlines()) <= 30


def test_the_checks_run_the_readmes_own_test_command() -> None:
    assert COMMAND_BLOCKS[1].strip() in (TOP / ".ci" / "run").read_text()


@pytest.mark.parametrize("name", [*COMMANDS, *plugincommands.names()])
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"agentsvc {name}" in README


@pytest.mark.parametrize("line", re.findall(r"^agentsvc .+$", README, re.MULTILINE))
def test_a_command_line_in_the_readme_is_understood(line: str) -> None:
    words = line.partition("#")[0].split()[1:]
    names = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    options = {word for word in words if word.startswith("--")}
    shown = CliRunner().invoke(cli, [*names[:2], "--help"])
    if shown.exit_code != 0:
        shown = CliRunner().invoke(cli, [*names[:1], "--help"])
    assert shown.exit_code == 0
    assert options <= set(re.findall(r"--[a-z-]+", shown.output))


def test_every_table_in_the_readme_is_as_the_code_has_it() -> None:
    assert render_readme() == README


def test_nothing_but_the_owners_files_is_visible_at_the_top() -> None:
    expected = {"README.md", "agentsvc", "config.toml", "plugins", "pyproject.toml", "tests"}
    visible = {path.name for path in TOP.iterdir() if not path.name.startswith(".")}
    assert visible - {"build", "dist"} == expected


def test_the_set_up_explains_itself_when_it_is_called_wrongly() -> None:
    result = subprocess.run(
        ["bash", str(TOP / ".ci" / "setup"), "nothing"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert "bash .ci/setup run" in result.stderr


def test_the_set_up_says_what_to_install_where_there_is_no_python(tmp_path: Path) -> None:
    for tool in ("bash", "cat", "dirname", "tr"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    result = subprocess.run(
        ["bash", str(TOP / ".ci" / "setup"), "python"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: Python 3.12 or 3.13 is needed")
    assert "hint: install one: apt install python3.12" in result.stderr


def test_the_set_up_finds_a_python_of_pyenv_behind_an_older_default(tmp_path: Path) -> None:
    for tool in ("bash", "cat", "dirname", "tr"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    new = tmp_path / ".pyenv" / "versions" / "3.12.9" / "bin" / "python"
    new.parent.mkdir(parents=True)
    new.write_text("#!/bin/sh\nexit 0\n")
    old.chmod(0o755)
    new.chmod(0o755)
    result = subprocess.run(
        ["bash", str(TOP / ".ci" / "setup"), "python"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert result.stdout == f"{new}\n"
