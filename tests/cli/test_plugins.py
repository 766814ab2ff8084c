import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import agentsvc
from agentsvc.cli import cli
from agentsvc.testing import WORKLOAD

PLUGIN = """
from agentsvc.plugin.backend import API_VERSION
from agentsvc.base.errors import BackendUnavailable
from agentsvc.plugin.hookspecs import hookimpl
from agentsvc.testing.backend import FakeBackend

__version__ = "7.1"


class Absent(FakeBackend):
    name = "absent"

    async def open(self):
        raise BackendUnavailable("nobody is there")


class Future(Absent):
    name = "future"
    api_version = API_VERSION + 1


@hookimpl
def agentsvc_register_backends():
    return [Absent, Future]
"""

UNFINISHED = """
from agentsvc.plugin.backend import RuntimeBackend
from agentsvc.plugin.hookspecs import hookimpl


class Unfinished(RuntimeBackend):
    name = "unfinished"


@hookimpl
def agentsvc_register_backends():
    return [Unfinished]
"""

USELESS = """
from agentsvc.base.errors import OrderRejected
from agentsvc.plugin.hookspecs import hookimpl
from agentsvc.testing import FakeWorld

class Useless(FakeWorld().backend_type()):
    name = "absent"

    async def create(self, order, save):
        raise OrderRejected("never")


@hookimpl
def agentsvc_register_backends():
    return [Useless]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "mine.py").write_text(PLUGIN)
    file = tmp_path / "config.toml"
    file.write_text('[plugins]\ndirs = ["plugins"]\n[backends.absent]\n')
    return file


def list_plugins(*options: str) -> Result:
    return CliRunner().invoke(cli, ["plugins", "list", *options])


def rows_of(result: Result) -> dict[str, list[str]]:
    """Return the cells of each line by the first one; a later table wins."""
    lines = [line.split() for line in result.stdout.splitlines() if line]
    return {line[0]: line[1:] for line in lines}


def test_what_comes_with_the_server_is_listed_with_its_version(tmp_path: Path) -> None:
    result = list_plugins()
    assert result.exit_code == 0
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    assert ["process", agentsvc.__version__, "built-in"] in rows
    assert rows_of(result)["process"][0] in {"ok", "not"}


def test_a_plugin_of_a_directory_is_listed_with_what_it_offers(config: Path) -> None:
    result = list_plugins("--config", str(config))
    assert result.exit_code == 0
    rows = rows_of(result)
    assert rows["mine"] == ["7.1", str(config.parent / "plugins/mine.py"), "register_backends"]
    assert rows["future"][:2] == ["mine", "2"]
    assert "incompatible" in " ".join(rows["future"])
    told = json.loads(list_plugins("--json", "--config", str(config)).stdout)
    assert {one["plugin"]: one["version"] for one in told["plugins"]}["mine"] == "7.1"
    assert "future" in [one["backend_class"] for one in told["backend_classes"]]
    assert "process" in [one["backend"] for one in told["backends"]]


def test_a_backend_that_cannot_be_reached_is_said_to_be_so(config: Path) -> None:
    result = list_plugins("--config", str(config))
    assert " ".join(rows_of(result)["absent"]).startswith("not usable: ")


@pytest.mark.parametrize("text", ["import nothing_of_this_name", UNFINISHED])
def test_a_plugin_that_does_not_fit_is_named_with_the_remedy(config: Path, text: str) -> None:
    (config.parent / "plugins/mine.py").write_text(text)
    result = list_plugins("--config", str(config))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: Plugin `mine` (")


def check_backend(config: Path, name: str) -> Result:
    return CliRunner().invoke(cli, ["plugins", "check", name, "--config", str(config)])


def test_a_backend_that_breaks_the_contract_fails_the_check(config: Path) -> None:
    (config.parent / "plugins/mine.py").write_text(USELESS)
    result = check_backend(config, "absent")
    assert result.exit_code == 1
    assert "failed  delete works in every phase and twice: OrderRejected: never" in result.stdout
    assert " failed, " in result.stdout.splitlines()[-1]
    assert result.stderr == "error: the backend `absent` does not fulfil the contract\n"


def test_a_backend_that_is_not_configured_cannot_be_checked(config: Path) -> None:
    result = check_backend(config, "future")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: there is no backend `future`\nhint: choose one of: process, absent\n"
    )


def test_a_check_that_does_not_exist_cannot_be_run_alone(config: Path) -> None:
    arguments = ["plugins", "check", "absent", "--only", "all is well", "--config", str(config)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "there is no check `all_is_well`" in result.stderr


def test_the_workload_in_an_image_is_reached_from_outside() -> None:
    printed = CliRunner().invoke(cli, ["plugins", "workload", "--image", "python:3.13-slim"])
    spec = msgspec.toml.decode(printed.stdout)["specs"]["kit"]
    assert spec["image"] == "python:3.13-slim"
    assert spec["command"] == ["python3", "-I", "-c", WORKLOAD]
    assert spec["env"] == {"KIT_PORT": "{port.web}", "KIT_HOST": "0.0.0.0"}  # noqa: S104  # in a sandbox
    assert spec["ports"] == [{"name": "web"}]


def test_a_backend_that_cannot_be_reached_cannot_be_checked(config: Path) -> None:
    result = check_backend(config, "absent")
    assert result.exit_code == 1
    assert result.stderr.endswith("error: The backend `absent` cannot be reached\n")
