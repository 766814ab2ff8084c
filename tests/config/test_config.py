from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.base.errors import StartFailed
from agentsvc.config import layers
from agentsvc.config.layers import ConfigSource
from agentsvc.config.sandboxes import SpecConfig
from agentsvc.config.schema import Config, LogLevel, data_dir, find_file, load, settings_of
from agentsvc.plugin.files import sections

NO_HOME = {"HOME": "/nonexistent"}


def loaded(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    at: Path | None = None,
) -> Config:
    file = None
    if text is not None and at is not None:
        file = at / "config.toml"
        file.write_text(text)
    return load(file, {**NO_HOME, **(environ or {})}, overrides or {}).config


def test_without_any_layer_everything_has_its_default() -> None:
    result = load(None, NO_HOME, {})
    assert result.config == Config()
    assert result.path is None
    assert result.config.server.port == 3000
    assert set(result.origins.values()) == {ConfigSource.DEFAULT}
    assert "conversations.title_tries" in result.origins


def test_each_layer_wins_over_the_ones_before_it(tmp_path: Path) -> None:
    file = tmp_path / "any.toml"
    file.write_text("[server]\nport = 1\nhost = 'file'\nmax_body_bytes = 2048\n")
    environ = {**NO_HOME, "AGENTSVC_SERVER__PORT": "2", "AGENTSVC_SERVER__HOST": "environment"}
    result = load(file, environ, {"server.port": 3, "server.host": None})
    server = result.config.server
    assert (server.port, server.host, server.max_body_bytes) == (3, "environment", 2048)
    assert result.origins["server.port"] is ConfigSource.COMMAND_LINE
    assert result.origins["server.host"] is ConfigSource.ENVIRONMENT
    assert result.origins["server.max_body_bytes"] is ConfigSource.FILE
    assert result.origins["server.data_dir"] is ConfigSource.DEFAULT
    assert result.path == file


def test_both_tables_of_a_plugin_are_read(tmp_path: Path) -> None:
    class Own(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        size: int = 1
        colour: str = "red"

    file = tmp_path / "any.toml"
    file.write_text("[own]\nsize = 2\n[extensions.own]\nsize = 3\ncolour = 'blue'\n")
    config = load(file, NO_HOME, {}, sections={"own": Own}).config
    assert settings_of(config, "own", Own) == Own(size=2, colour="blue")
    file.write_text("[own]\nsize = 2\n[extensions.own]\nwrong = 3\n")
    config = load(file, NO_HOME, {}, sections={"own": Own}).config
    with pytest.raises(StartFailed, match="wrong"):
        settings_of(config, "own", Own)


def test_a_number_in_a_variable_is_what_its_key_takes() -> None:
    class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        api_key: str
        days: int
        enabled: bool

    texts = {"API_KEY": "12e3", "DAYS": "123", "ENABLED": "false"}
    config = loaded(environ={f"AGENTSVC_EXTENSIONS__X__{key}": one for key, one in texts.items()})
    assert settings_of(config, "x", Settings) == Settings("12e3", 123, enabled=False)
    config = loaded(environ={"AGENTSVC_EXTENSIONS__X__API_KEY": "123"})
    assert config.extensions["x"] == {"api_key": "123"}


@pytest.mark.parametrize(
    ("variable", "text", "section", "key", "value"),
    [
        ("SERVER__CORS_ORIGINS", '["http://a", "https://b:1"]', "server", "cors_origins", None),
        ("SERVER__CORS_ORIGINS", "http://a, https://b:1", "server", "cors_origins", None),
        ("SERVER__CORS_ORIGINS", "", "server", "cors_origins", ()),
        ("SERVER__CORS_ORIGINS", "*", "server", "cors_origins", ("*",)),
        ("SERVER__HOST", "0.0.0.0", "server", "host", "0.0.0.0"),  # noqa: S104
        ("SERVER__HOST", "123", "server", "host", "123"),
        ("EVENTS__STORE_DELTAS", "true", "events", "store_deltas", True),
        ("EVENTS__STORE_DELTAS", "0", "events", "store_deltas", False),
        ("SANDBOXES__SWEEP_SECONDS", "2", "sandboxes", "sweep_seconds", 2.0),
        ("LOG__LEVEL", "error", "log", "level", LogLevel.ERROR),
        ("PLUGINS__DISABLE", "5", "plugins", "disable", ("5",)),
    ],
)
def test_a_variable_is_read_as_the_type_of_its_key(
    variable: str, text: str, section: str, key: str, value: Any
) -> None:
    config = loaded(environ={f"AGENTSVC_{variable}": text})
    expected = ("http://a", "https://b:1") if value is None else value
    assert getattr(getattr(config, section), key) == expected


def test_named_tables_take_values_from_file_and_environment(tmp_path: Path) -> None:
    config = loaded(
        """
        [backends.Docker]
        type = "docker"
        [backends.plain]
        [specs.small]
        image = "a"
        ports = [{ name = "agent", number = 8000 }, { name = "worker_1" }]
        limits = { cpus = 0.5 }
        [specs.small.env]
        A = "1"
        [specs.other]
        id = "registry.example/image:1"
        """,
        {
            "AGENTSVC_BACKENDS__DOCKER__CPUS": "2",
            "AGENTSVC_BACKENDS__DOCKER__NAME": "text",
            "AGENTSVC_BACKENDS__DOCKER__ON": "true",
            "AGENTSVC_SPECS__SMALL__COMMAND": '["a", "b c"]',
            "AGENTSVC_SPECS__SMALL__ENV": "A=2,B=x=y",
            "AGENTSVC_SPECS__SMALL__OPTIONS": '{"deep": {"er": 1}}',
        },
        at=tmp_path,
    )
    assert config.backends == {
        "Docker": {"type": "docker", "cpus": "2", "name": "text", "on": True},
        "plain": {},
    }
    small = config.specs["small"]
    assert small.id == "small"
    assert small.command == ("a", "b c")
    assert small.env == {"A": "2", "B": "x=y"}
    assert small.options == {"deep": {"er": 1}}
    assert [(port.name, port.number, port.awaited) for port in small.ports] == [
        ("agent", 8000, True),
        ("worker_1", 0, True),
    ]
    assert small.limits.cpus == 0.5
    assert config.specs["other"] == SpecConfig(id="registry.example/image:1")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[server]\nprot = 1", "`server.prot` in FILE is not a known key", "`server.port`"),
        ("[servr]\nport = 1", "`servr.port` in FILE is not a known key", "`server.port`"),
        ("[log.deep]\nx = 1", "`log.deep` in FILE is not a known key", "`log"),
        ("zzzzzzzz = 1", "`zzzzzzzz` in FILE is not a known key", "agentsvc config default"),
        ("[specs.a]\nimag = ''", "`specs.a.imag` in FILE is not", "`specs.a.image`"),
        ("server = 1", "`server` in FILE is `1`, expected a table", ""),
        ("[specs]\na = 1", "`specs.a` in FILE is `1`, expected a table", ""),
        ("backends = []", "`backends` in FILE is `[]`, expected a table", ""),
        (
            "[server]\nport = '80'",
            '`server.port` in FILE is `"80"`, expected a whole number from 0 to 65535',
            "its default is `3000`",
        ),
        ("[server]\nport = 70000", "expected a whole number from 0 to 65535", "3000"),
        ("[server]\nport = true", "`server.port` in FILE is `true`", ""),
        ("[server]\nhost = ''", "expected a string that is not empty", ""),
        ("[server]\npublic_url = 'x'", "expected an http or https URL, or nothing", ""),
        ("[gateway]\nsandbox_domain = 'a.example'", "expected a wildcard such as `*.", ""),
        ("[gateway]\nsandbox_domain = '*'", "expected a wildcard such as `*.", ""),
        ("[gateway]\nsandbox_domain = '*.a.example:1'", "expected a wildcard such as `*.", ""),
        ('[gateway]\nsandbox_domain = "*.a.example\\n"', "expected a wildcard such as `*.", ""),
        ("[server]\ncors_origins = ['http://a/b']", "expected a list of origins", ""),
        ("[sandboxes]\nsweep_seconds = 0", "expected a number greater than 0", ""),
        ("[sandboxes]\nsweep_seconds = inf", "expected a number greater than 0", ""),
        ("[sandboxes]\nstart_seconds = 1e12", "greater than 0 and at most 1000000000", "120"),
        ("[sandboxes]\norphan_grace_seconds = 1e12", "from 0 to 1000000000", "300"),
        ("[conversations]\nstart_seconds = 1e12", "greater than 0 and at most 1000000000", "900"),
        ("[conversations]\nkeep_failed_seconds = 1e12", "from 0 to 1000000000", "3600"),
        ("[server]\nshutdown_grace_seconds = -1", "expected a number of at least 0", ""),
        ("[log]\nlevel = 'loud'", "one of `debug`, `info`, `warning`, `error`", "info"),
        ("[plugins]\ndirs = 'x'", "expected a list of strings", "`[]`"),
        ("[events]\nstore_deltas = 1", "expected true or false", "`false`"),
        ("[specs.a]\nimage = 1", "`specs.a.image` in FILE is `1`, expected a string", ""),
        ("[specs.a]\nenv = 'A=1'", '`specs.a.env` in FILE is `"A=1"`, expected a table', ""),
        ("[specs.a]\nports = [{ name = 'A' }]", "expected a list of tables such as", ""),
        ("[specs.a]\nlimits = { cpu = 1 }", "contains unknown field `cpu`)", ""),
        ("[specs.a]\nlimits = { cpus = inf }", "(Expected `float` <= 1000000.0", ""),
        ("[specs.a]\nlimits = { pids = 4194305 }", "(Expected `int` <= 4194304", ""),
        ("[specs.a]\nlimits = { disk_bytes = 2000000000000000000 }", "(Expected `int` <= 1", ""),
        ("[server]\ndata_dir = '~nobody-here/a'", "`server.data_dir` in FILE cannot be", "home"),
        ("[specs.a]\nid = 'x'\n[specs.x]", "`specs.a` and `specs.x` have the same id", "`specs.x`"),
        ("[git]\nprivate_hosts = ['a/']", "`git` is invalid: `a/` cannot be allowed", "host"),
        ("[sandboxes]\nmodel_hosts = ['a/']", "`sandboxes` is invalid: `a/` cannot", "host"),
        ("[server", "the config file is not valid TOML: FILE", "end of document"),
        ("a = " + "[" * 3000, "the config file is not valid TOML: FILE", "recursion"),
        ("a = " + "9" * 5000, "the config file is not valid TOML: FILE", "4300 digits"),
    ],
)
def test_a_wrong_file_is_answered_with_key_value_file_and_remedy(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(StartFailed) as caught:
        loaded(text, at=tmp_path)
    assert message.replace("FILE", str(tmp_path / "config.toml")) in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.hint


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("AGENTSVC_SERVER__PORT", "x", '`server.port` in AGENTSVC_SERVER__PORT is `"x"`'),
        ("AGENTSVC_SERVER__PRT", "1", "`server.prt` in AGENTSVC_SERVER__PRT is not a known key"),
        ("AGENTSVC_SERVER__PORT__X", "1", "`server.port.x` in AGENTSVC_SERVER__PORT__X is not"),
        ("AGENTSVC_PORT", "1", "`port` in AGENTSVC_PORT is not a known key"),
        ("AGENTSVC_SERVER", "1", '`server` in AGENTSVC_SERVER is `"1"`, expected a table'),
        ("AGENTSVC_CONFIG__X", "1", "`config.x` in AGENTSVC_CONFIG__X is not a known key"),
        ("AGENTSVC_SANDBOXES__SWEEP_SECONDS", "nan", "expected a number greater than 0"),
        (
            "AGENTSVC_SERVER__PORT",
            "\udcff",
            "`server.port` in AGENTSVC_SERVER__PORT cannot be read",
        ),
        ("AGENTSVC_SERVER__PORT", "[" * 9999, "`server.port` in AGENTSVC_SERVER__PORT cannot be"),
    ],
)
def test_a_wrong_variable_is_answered_with_its_name(variable: str, text: str, message: str) -> None:
    with pytest.raises(StartFailed) as caught:
        loaded(environ={variable: text})
    assert message in caught.value.message


def test_a_path_need_not_be_text() -> None:
    configured = loaded(environ={"AGENTSVC_SERVER__DATA_DIR": "/srv/\udcff"})
    assert configured.server.data_dir == "/srv/\udcff"


def test_an_empty_section_changes_nothing(tmp_path: Path) -> None:
    assert loaded("[server]\n[specs]\n[backends]", at=tmp_path) == Config()


def test_variables_with_another_purpose_are_no_keys() -> None:
    environ = {"AGENTSVC_BOOTSTRAP_KEY": "k", "AGENTSVC_TRACE_PLUGINS": "1", "PATH": "/bin"}
    assert loaded(environ=environ) == Config()


def test_a_wrong_option_is_answered_with_the_command_line() -> None:
    with pytest.raises(StartFailed, match=r"`server\.port` in the command line is `-1`"):
        loaded(overrides={"server.port": -1})


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(StartFailed) as caught:
        loaded(overrides={"server.port": "x" * 1000})
    assert len(caught.value.message) < 200


def test_a_retired_key_is_answered_with_its_replacement(tmp_path: Path) -> None:
    class Section(msgspec.Struct, frozen=True, kw_only=True):
        new: int = 1

    class Schema(msgspec.Struct, frozen=True, kw_only=True):
        section: Section = Section()

    file = tmp_path / "config.toml"
    file.write_text("[section]\nold = 2")
    with pytest.raises(StartFailed, match=r"`section\.old` in .* is no longer a key") as caught:
        layers.read(
            Schema,
            file=file,
            environ={},
            other_variables=frozenset(),
            overrides={},
            retired={"section.old": "use `section.new`"},
        )
    assert caught.value.hint == "use `section.new`"


def test_the_key_for_networks_of_their_own_is_answered_with_what_replaces_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(StartFailed, match=r"`backends\.process\.own_network`") as caught:
        loaded("[backends.process]\nown_network = false", at=tmp_path)
    assert '`network = "host"`' in caught.value.hint


def test_paths_of_the_file_start_at_the_file(tmp_path: Path) -> None:
    config = loaded(
        "[server]\ndata_dir = 'data'\n[plugins]\ndirs = ['plugins', '/usr/plugins']", at=tmp_path
    )
    assert config.server.data_dir == str(tmp_path / "data")
    assert config.plugins.dirs == (str(tmp_path / "plugins"), "/usr/plugins")


def test_paths_in_the_sections_of_plugins_start_at_the_file_too(tmp_path: Path) -> None:
    text = """
        [environments]
        features_dir = "features"
        [sign_in.providers.a]
        issuer = "https://login.example.com"
        client_id = "agentsvc"
        client_secret_file = "secret"
        """
    file = tmp_path / "config.toml"
    file.write_text(text)
    extensions = load(file, NO_HOME, {}, sections=sections()).config.extensions
    assert extensions["environments"]["features_dir"] == str(tmp_path / "features")
    provider = extensions["sign_in"]["providers"]["a"]
    assert provider["client_secret_file"] == str(tmp_path / "secret")


def test_other_paths_start_at_the_working_directory() -> None:
    config = loaded(
        environ={"AGENTSVC_PLUGINS__DIRS": "plugins"}, overrides={"server.data_dir": "data"}
    )
    assert config.server.data_dir == str(Path.cwd() / "data")
    assert config.plugins.dirs == (str(Path.cwd() / "plugins"),)


def test_a_home_directory_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    config = loaded(overrides={"server.data_dir": "~/data"})
    assert config.server.data_dir == "/home/somebody/data"


def test_a_user_without_a_home_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    configured = load(None, {}, {"server.data_dir": "/srv/data"}).config
    assert data_dir(configured, {}) == Path("/srv/data")
    assert data_dir(Config(), {}) == Path("/.local/share/agentsvc")


def test_the_named_file_wins_over_the_variable_and_the_usual_one(tmp_path: Path) -> None:
    usual = tmp_path / "agentsvc" / "config.toml"
    usual.parent.mkdir()
    usual.touch()
    other, third = tmp_path / "other.toml", tmp_path / "third.toml"
    other.touch()
    third.touch()
    environ = {**NO_HOME, "XDG_CONFIG_HOME": str(tmp_path)}
    assert find_file(None, NO_HOME) is None
    assert find_file(None, environ) == usual
    assert find_file(None, {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "relative"}) is None
    assert find_file(None, {**environ, "AGENTSVC_CONFIG": str(other)}) == other
    assert find_file(third, {**environ, "AGENTSVC_CONFIG": str(other)}) == third


def test_a_named_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="named by --config does not exist"):
        find_file(tmp_path / "none.toml", NO_HOME)
    with pytest.raises(StartFailed, match="named by AGENTSVC_CONFIG does not exist"):
        find_file(None, {"AGENTSVC_CONFIG": str(tmp_path)})


def test_a_file_may_begin_with_the_mark_that_editors_put_there(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[server]\nport = 1234\n", "utf-8-sig")
    assert load(tmp_path / "config.toml", {}, {}).config.server.port == 1234


def test_a_usual_place_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "agentsvc/config.toml").mkdir(parents=True)
    with pytest.raises(StartFailed, match="cannot be read"):
        load(None, {"XDG_CONFIG_HOME": str(tmp_path)}, {})


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(StartFailed, match="not UTF-8"):
        load(file, NO_HOME, {})


def test_a_file_that_cannot_be_read_is_an_error() -> None:
    # Even root gets an input/output error here.
    with pytest.raises(StartFailed, match="cannot be read: /proc/self/mem"):
        load(Path("/proc/self/mem"), NO_HOME, {})


def test_the_data_directory_is_where_the_user_keeps_data() -> None:
    configured = loaded(overrides={"server.data_dir": "/srv/data"})
    assert data_dir(configured, {}) == Path("/srv/data")
    assert data_dir(Config(), {"HOME": "/h"}) == Path("/h/.local/share/agentsvc")
    assert data_dir(Config(), {"XDG_DATA_HOME": "/d", "HOME": "/h"}) == Path("/d/agentsvc")
    assert data_dir(Config(), {"XDG_DATA_HOME": "d", "HOME": "/h"}).is_relative_to("/h")
