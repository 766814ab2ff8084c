"""The package that a new plugin begins with."""

import ast
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentsvc.cli import cli
from agentsvc.testing.skeleton import files


def test_a_new_package_names_everything_after_its_plugin() -> None:
    made = files("small_vm")
    project = tomllib.loads(made["pyproject.toml"])
    assert project["project"]["entry-points"]["agentsvc"] == {"small_vm": "agentsvc_small_vm"}
    module = made["agentsvc_small_vm/__init__.py"]
    names = {node.name for node in ast.parse(module).body if isinstance(node, ast.ClassDef)}
    assert names == {"SmallVmConfig", "SmallVmBackend"}
    assert 'name: ClassVar[str] = "small_vm"' in module
    assert [text for text in made.values() if "xample" in text or "NAME" in text] == []


@pytest.mark.parametrize("name", ["", "Vm", "1vm", "a-b", "a__b", "../up", "a b"])
def test_what_cannot_be_a_plugins_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a plugin cannot be called"):
        files(name)


def test_the_command_makes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    made = runner.invoke(cli, ["plugins", "new", "vm"])
    assert (made.exit_code, made.output.splitlines()[0]) == (0, "agentsvc-vm")
    assert (tmp_path / "agentsvc-vm" / "agentsvc_vm" / "__init__.py").is_file()
    again = runner.invoke(cli, ["plugins", "new", "vm"])
    assert (again.exit_code, "exists already" in again.output) == (1, True)
    wrong = runner.invoke(cli, ["plugins", "new", "No"])
    assert (wrong.exit_code, "hint: choose lower-case" in wrong.output) == (1, True)
    below = tmp_path / "file" / "below"
    below.parent.touch()
    stuck = runner.invoke(cli, ["plugins", "new", "vm", "--directory", str(below)])
    assert (stuck.exit_code, "cannot be created" in stuck.output) == (1, True)
