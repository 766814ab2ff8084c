import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import agentsvc
from agentsvc.base.errors import HINT_ACCESS, HINT_ROOM, Conflict, StartFailed
from agentsvc.cli import COMMANDS, CommandFailed, LazyGroup, cli, plugincommands
from agentsvc.cli.manager import Manager, Reload
from agentsvc.cli.run.watch import View
from agentsvc.cli.text import columns, json_line, json_text
from agentsvc.config.schema import Loaded, load
from agentsvc.plugin.files import sections


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(cli, ["--version"], prog_name="agentsvc")
    assert result.output == f"agentsvc {agentsvc.__version__}\n"
    assert metadata.version("agentsvc") == agentsvc.__version__


def test_the_metadata_names_the_command_and_what_it_does() -> None:
    about = metadata.metadata("agentsvc")
    scripts = metadata.entry_points(group="console_scripts", name="agentsvc")
    assert set(about["Requires-Python"].split(",")) == {">=3.12", "<3.14"}
    assert about["Summary"] == str(agentsvc.__doc__).rstrip(".")
    assert [script.value for script in scripts] == ["agentsvc.__main__:main"]


def test_the_extras_are_those_the_documents_name() -> None:
    extras = metadata.metadata("agentsvc").get_all("Provides-Extra")
    assert extras is not None
    assert {"agent", "cli", "dev", "docker"} <= set(extras)


@pytest.mark.parametrize("name", [*COMMANDS, *plugincommands.names()])
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage: cli " + name)


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    listed = re.findall(r"^  ([a-z]+)  ", result.output, re.MULTILINE)
    assert {*COMMANDS, "import"} <= set(listed)


def test_a_command_that_is_not_there_names_the_one_that_may_be_meant() -> None:
    result = CliRunner().invoke(cli, ["conversatoins"])
    assert result.exit_code == 2
    assert "Did you mean `conversations`?" in result.stderr


@pytest.mark.parametrize("words", ["deploy list", "sbom"])
def test_a_command_works_where_standard_streams_are_closed(words: str, tmp_path: Path) -> None:
    for closed in (">&-", "<&- >&- 2>&-"):
        command = f"exec {sys.executable} -m agentsvc {words} {closed}"
        result = subprocess.run(
            ["bash", "-c", command],
            check=True,
            stderr=subprocess.PIPE,
            env={"HOME": str(tmp_path)},
        )
        assert result.stderr == b""


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    command = f"{sys.executable} -m agentsvc openapi | head -c 10; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1].endswith("0")
    assert result.stderr == ""


@pytest.mark.parametrize("words", ["--help", "--version", "keys --help"])
def test_help_that_is_not_taken_has_no_traceback(words: str) -> None:
    command = f"{sys.executable} -m agentsvc {words}"
    # Written at once, there is nothing left to be written at the end.
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    script = ["bash", "-c", f"{command} >/dev/full"]
    full = subprocess.run(script, capture_output=True, text=True, check=False, env=buffered)
    told = f"error: the disk is full: standard output\nhint: {HINT_ROOM}\n"
    assert (full.returncode, full.stderr) == (1, told)
    pipe = ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"]
    assert subprocess.run(pipe, capture_output=True, check=True, env=buffered).stderr == b""


def test_a_chat_that_goes_on_takes_no_repository() -> None:
    words = ["chat", "--id", "x", "--repo", "a/b", "--url", "http://127.0.0.1:1", "--key", "x"]
    assert CliRunner().invoke(cli, words).exit_code == 2


def test_a_device_is_no_directory_to_work_on() -> None:
    words = ["run", "task", "--dir", os.devnull, "--url", "http://127.0.0.1:1", "--key", "x"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert "not a directory: /dev/null" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "automations create",
        "automations github-app 1 --private-key",
        "environments create --name x --setup-file",
        "sbom --lock",
    ],
)
def test_a_file_is_not_read_without_end(words: str, tmp_path: Path) -> None:
    # What has an end like this one, and is no danger as `/dev/zero` is.
    file = tmp_path / "endless"
    with file.open("wb") as opened:
        opened.truncate(64 * 1024 * 1024)
    server = {"AGENTSVC_URL": "http://127.0.0.1:1", "AGENTSVC_API_KEY": "key"}
    result = CliRunner(env=server).invoke(cli, [*words.split(), str(file)])
    assert result.exit_code == 1
    assert result.stderr == f"error: the file is longer than 10485760 characters: {file}\n"


def test_an_empty_task_is_refused() -> None:
    result = CliRunner().invoke(cli, ["run", " "])
    assert result.exit_code == 2
    assert "the task is empty" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["serve", "--nothing"],
        ["keys", "revoke", "x"],
        ["keys", "list", "--data-dir", ""],
    ],
)
def test_wrong_usage_is_exit_code_2_on_stderr(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error:" in result.stderr


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StartFailed("it broke", hint="mend it"), "error: it broke\nhint: mend it\n"),
        (StartFailed("it broke"), "error: it broke\n"),
        (Conflict("it is there already"), "error: it is there already\n"),
        (
            PermissionError(13, "Permission denied", "/srv/data/agentsvc.db"),
            f"error: Permission denied: /srv/data/agentsvc.db\nhint: {HINT_ACCESS}\n",
        ),
        (OSError(28, "No space left"), f"error: the disk is full\nhint: {HINT_ROOM}\n"),
        (
            UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no"),
            f"error: invalid text: {UnicodeEncodeError('utf-8', chr(0xDCFF), 0, 1, 'no')}\n",
        ),
    ],
)
def test_a_deliberate_error_is_one_line_and_a_hint(error: Exception, expected: str) -> None:
    class Failing(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            @click.command()
            def fail() -> None:
                raise error

            return fail

    result = CliRunner().invoke(Failing("failing"), ["fail"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == expected


def test_what_is_no_matter_of_a_file_keeps_its_traceback() -> None:
    class Failing(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
            @click.command()
            def fail() -> None:
                raise ConnectionResetError(104, "Connection reset by peer")

            return fail

    result = CliRunner().invoke(Failing("failing"), ["fail"])
    assert isinstance(result.exception, ConnectionResetError)


@pytest.mark.parametrize(
    "arguments",
    [["keys", "list"], ["users", "list"], ["db", "check"], ["backup", "to.tar.gz"]],
)
@pytest.mark.parametrize("option", ["--data-dir", "--config"])
def test_a_place_that_cannot_be_looked_at_is_one_line(arguments: list[str], option: str) -> None:
    # Even root gets an error for such a name.
    result = CliRunner().invoke(cli, [*arguments, option, "x" * 300])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: File name too long: ")


@pytest.mark.parametrize("error", [StartFailed("it broke"), PermissionError(13, "no", "x")])
def test_a_reload_that_fails_is_over_all_the_same(error: Exception) -> None:
    told: list[str] = []

    class Listening(Manager):
        def notify(self, *lines: str) -> None:
            told.extend(lines)

    def read() -> Loaded:
        raise error

    Reload(Listening({}), load(None, {"HOME": "/nonexistent"}, {}), read)()
    assert told[-1] == "READY=1"


def test_a_reload_names_what_differs_from_what_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.toml"

    def read() -> Loaded:
        return load(file, {"HOME": "/nonexistent"}, {}, sections=sections())

    def keys(text: str) -> list[list[str]]:
        caplog.clear()
        file.write_text(text)
        reload()
        return [vars(record)["keys"] for record in caplog.records]

    caplog.set_level(logging.INFO)
    file.touch()
    reload = Reload(Manager({}), read(), read)
    shared = "[sharing]\nenabled = true\n"
    assert keys(shared) == [["sharing.enabled"], ["sharing.enabled"]]
    assert keys(f"{shared}[log]\nlevel = 'info'") == [[], ["sharing.enabled"]]
    assert keys("") == [["sharing.enabled"]]


def test_the_module_runs_the_command_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "agentsvc", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("agentsvc ")


def test_a_config_mistake_is_answered_by_every_command_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[server]\nprot = 1\n")
    result = CliRunner().invoke(cli, ["keys", "list", "--config", str(file)])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: `server.prot`")
    assert "hint: did you mean `server.port`?" in result.stderr


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07", "\x9b2J", "\x7f", "a\rb", "a\nb"])
def test_nothing_that_is_shown_is_obeyed_by_a_terminal(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*columns(("A", "B"), [(hostile, "x")]), json_line({"a": hostile})]
    assert all(line.isprintable() for line in lines)
    assert json.loads(json_line({"a": hostile})) == json.loads(json_text({"a": hostile}))
    assert json.loads(json_text({"a": hostile})) == {"a": hostile}
    CommandFailed(f"start failed: {hostile}", hostile).show()
    View(as_json=False).say(hostile)
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = columns(("A", "LONG"), [("wide cell", "x"), ("y", "z")])
    assert list(lines) == ["A          LONG", "wide cell  x", "y          z"]


def test_the_command_line_starts_without_the_server(tmp_path: Path) -> None:
    code = "import sys, agentsvc.__main__; print(*sorted(sys.modules))"
    # Coverage, which watches children when asked to, imports sqlite3 itself.
    inherited = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**inherited, "HOME": str(tmp_path)},
    )
    assert not {"aiohttp", "cryptography", "sqlite3"} & set(result.stdout.split())


@pytest.mark.parametrize("name", ["run", "conversations", "sandboxes", "settings", "secrets"])
def test_a_command_that_talks_to_a_server_is_not_one(name: str) -> None:
    code = f"import sys, agentsvc.cli.{name}; print(*sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"aiohttp", "aiosqlite", "cryptography", "rich"} & set(result.stdout.split())


def test_the_server_knows_nothing_of_terminals() -> None:
    code = "import sys, agentsvc.app, agentsvc.cli.serve; print(*sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = result.stdout.split()
    assert "rich" not in loaded
    assert not [
        name for name in loaded if name.startswith(("agentsvc.cli.run", "agentsvc.cli.show"))
    ]


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        yield (*path, name)
        if isinstance(found, click.Group):
            yield from every_command(found, (*path, name))


def test_the_help_of_every_command_ends_with_an_example_of_it() -> None:
    for path in every_command(cli):
        result = CliRunner().invoke(cli, [*path, "--help"])
        assert result.exit_code == 0
        shown = result.output.partition("\n  Example:\n")[2]
        assert f"agentsvc {' '.join(path)}" in shown, path
