import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentsvc.cli import cli
from agentsvc.config.file import render_default
from agentsvc.plugin.files import sections


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments], env=environment)


def test_the_default_file_is_printed_as_it_is() -> None:
    result = run("default")
    assert (result.exit_code, result.stdout) == (0, render_default(sections()))


def test_every_value_is_shown_with_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[server]\nport = 4000\n[specs.big]\nenv = { A = "b" }\n')
    result = run(
        "show", "--config", str(file), "--data-dir", "/srv/data", AGENTSVC_LOG__LEVEL="debug"
    )
    assert result.exit_code == 0
    assert result.stderr == f"config file: {file}\n"
    lines = result.stdout.splitlines()
    assert 'server.host = "127.0.0.1"  # default' in lines
    assert "server.port = 4000  # file" in lines
    assert 'log.level = "debug"  # environment' in lines
    assert 'server.data_dir = "/srv/data"  # command line' in lines
    assert 'specs.big.env = { A = "b" }  # file' in lines


def test_what_is_shown_can_be_used_as_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(run("show", AGENTSVC_SERVER__PORT="4000").stdout)
    assert tomllib.loads(file.read_text())["server"]["port"] == 4000
    assert "server.port = 4000  # file" in run("show", "--config", str(file)).stdout


def test_names_with_dots_and_what_was_not_said_are_shown_as_a_config_file_has_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[specs."py3.12"]\nlimits = { cpus = 1.0 }\nenv = { "a b" = "c" }\n'
        '[specs.py3]\nimage = "x"\n[backends."a.b"]\n'
    )
    result = run("show", "--config", str(file))
    tables = tomllib.loads(result.stdout)
    assert tables["specs"] == {
        "py3.12": {"limits": {"cpus": 1.0}, "env": {"a b": "c"}},
        "py3": {"image": "x"},
    }
    assert tables["backends"] == {"a.b": {}}


@pytest.mark.parametrize("key", ["api_key", "token", "password", "client_secret"])
def test_what_a_backend_calls_a_secret_is_not_shown(tmp_path: Path, key: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[backends.remote]\n{key} = "hush-hush"\nkeyboard = "us"\n')
    result = run("show", "--config", str(file))
    assert f'backends.remote.{key} = "**********"' in result.stdout
    assert 'backends.remote.keyboard = "us"' in result.stdout
    assert "hush-hush" not in result.stdout


def test_what_is_called_a_secret_inside_of_a_table_is_not_shown_either(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        "[backends.far]\nheaders = { Authorization = 'hush' }\nhosts = [{ a = 1, token = 'hush' }]\n"
        "secrets = { a = 'hush' }\n"
        "[specs.big]\nenv = { A = 'b', API_KEY = 'hush' }\noptions = { in = { password = 'hush' } }\n"
    )
    shown = run("show", "--config", str(file)).stdout
    assert "hush" not in shown
    assert 'backends.far.hosts = [{ a = 1, token = "**********" }]' in shown
    assert 'specs.big.env = { A = "b", API_KEY = "**********" }' in shown


def test_a_value_that_does_not_fit_is_named_with_its_source() -> None:
    result = run("show", AGENTSVC_SERVER__PORT="many")
    assert result.exit_code == 1
    assert result.stderr.startswith('error: `server.port` in AGENTSVC_SERVER__PORT is `"many"`')
