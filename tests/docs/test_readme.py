import re
import subprocess
from pathlib import Path

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text()
FIRST_SCREEN = README[: README.index("\n## ")]
MAX_LINES = 160
COMMAND_BLOCKS = re.findall(r"```sh\n(.*?)```", FIRST_SCREEN, re.DOTALL)


def test_the_first_screen_says_what_it_is_and_has_two_commands_and_a_picture() -> None:
    introduction = FIRST_SCREEN.split("\n\n")[1]
    assert len(re.findall(r"[.!?](?=\s|$)", introduction)) == 3
    for word in ("OpenHands", "V0 (`/api`)", "V1 (`/api/v1`)"):
        assert word in introduction
    assert COMMAND_BLOCKS == ["bash .ci/setup run\n", "bash .ci/setup test\n"]
    assert "\n![" in FIRST_SCREEN
    assert len(FIRST_SCREEN.splitlines()) <= 30
    assert len(README.splitlines()) <= MAX_LINES


def test_the_checks_run_the_readmes_own_test_command() -> None:
    assert COMMAND_BLOCKS[1].strip() in (TOP / ".ci" / "run").read_text()


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
