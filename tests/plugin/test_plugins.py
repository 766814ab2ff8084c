"""Plugins: found, loaded, refused with a remedy, and told what happened."""

import importlib
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process.backend import ProcessBackend
from process.specs import DEFAULT_SPEC

from agentsvc.base.errors import BackendUnavailable, StartFailed
from agentsvc.config.sandboxes import SandboxesConfig, SpecConfig, SpecLimitsConfig
from agentsvc.config.schema import Config
from agentsvc.extension.server import make_extensions
from agentsvc.plugin.backend import Port, Spec
from agentsvc.plugin.files import bundled
from agentsvc.plugin.hookspecs import hookimpl
from agentsvc.sandboxes.plugin_loader import BUILT_IN, Plugin, PluginHost
from agentsvc.sandboxes.registry import BackendRegistry, kinds_of
from agentsvc.testing import FakeBackend, FakeWorld

PLUGINS = Path(__file__).parents[2] / "plugins"
OURS = ["process", *(file.stem for file in PLUGINS.iterdir() if file.suffix in ("", ".py"))]
"""What comes with the server, so that a test sees its own plugin alone."""

USUAL = {"process", "attempts", "automations", "environments", "githosts", "webhooks"}
"""What every server loads."""

BACKEND = """
from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from agentsvc.plugin.hookspecs import hookimpl
from agentsvc.testing import FakeBackend

__version__ = "2.5"


class Size(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gigabytes: int = 1


class CloudConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    region: str
    size: Size = Size()
    is_fast: bool = False


class CloudBackend(FakeBackend):
    name: ClassVar[str] = "cloud"
    Config = CloudConfig


@hookimpl
def agentsvc_register_backends():
    return [CloudBackend]
"""


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    return directory


def load(directory: Path, **options: Any) -> PluginHost:
    return PluginHost.load(dirs=[directory], disable=OURS, **options)


def build(host: PluginHost, directory: Path, **tables: Any) -> BackendRegistry:
    config = Config(**{"sandboxes": SandboxesConfig(default_backend="cloud"), **tables})
    return BackendRegistry.build(host, config, instance_id="here", state_dir=directory)


def fake_host(world: FakeWorld) -> PluginHost:
    host = PluginHost()
    host.add("fake", world.plugin(), version="1", origin="this test")
    return host


FAKE = Config(sandboxes=SandboxesConfig(default_backend="fake"), backends={"fake": {}})


def test_the_built_in_plugin_offers_the_process_backend_and_its_spec() -> None:
    host = PluginHost.load()
    assert {plugin.name: plugin for plugin in host.plugins()}["process"] == Plugin(
        name="process",
        version="",
        origin=BUILT_IN,
        hooks=("agentsvc_register_backends", "agentsvc_register_specs"),
        backends=(ProcessBackend,),
        specs=(DEFAULT_SPEC,),
    )


def test_a_plugin_file_is_loaded_without_shadowing_a_library(tmp_path: Path) -> None:
    host = load(write(tmp_path / "plugins", aiohttp=BACKEND, _not="1 / 0"))
    [plugin] = host.plugins()
    assert (plugin.name, plugin.version) == ("aiohttp", "2.5")
    assert plugin.origin == str(tmp_path / "plugins/aiohttp.py")
    assert host.backend_types()["cloud"].__module__ == "agentsvc_plugins.aiohttp"
    import aiohttp  # noqa: PLC0415  # after the plugin of that name

    assert hasattr(aiohttp, "ClientSession")


def test_a_plugin_directory_with_init_is_loaded(tmp_path: Path) -> None:
    inner = tmp_path / "cloud"
    write(inner, __init__="from agentsvc_plugins.cloud.main import *\n", main=BACKEND)
    (inner / "main.py").write_text(BACKEND + "\n__all__ = ['agentsvc_register_backends']\n")
    assert list(load(tmp_path).backend_types()) == ["cloud"]


def test_a_plugin_may_still_use_the_former_names_of_public_modules(tmp_path: Path) -> None:
    source = """
from agentsvc import errors, values
from agentsvc.backend import Port, Spec
from agentsvc.hookspecs import hookimpl

@hookimpl
def agentsvc_register_specs():
    assert errors.Conflict and values.now
    return [Spec(id="former", backend="process", ports=(Port(name="agent", number=0),))]
"""
    (tmp_path / "older.py").write_text(source)
    [plugin] = [one for one in PluginHost.load(dirs=[tmp_path]).plugins() if one.name == "older"]
    assert [spec.id for spec in plugin.specs] == ["former"]


def test_a_disabled_plugin_that_there_is_not_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    names = {plugin.name for plugin in PluginHost.load(disable=["webhooks", "webhoks"]).plugins()}
    assert "webhooks" not in names
    [record] = caplog.records
    assert record.message == "plugins.disable names no plugin: webhoks"


def test_a_disabled_plugin_is_not_even_imported(tmp_path: Path) -> None:
    write(tmp_path, broken="1 / 0")
    host = PluginHost.load(dirs=[tmp_path], disable=[*OURS, "broken"])
    assert host.plugins() == []


def test_manifests_say_what_first_party_plugins_offer() -> None:
    host = PluginHost.load(points=())
    offered = {plugin.name: {kind.name for kind in plugin.backends} for plugin in host.plugins()}
    said = {file.name: set(file.manifest.backends) for file in bundled() if file.manifest}
    assert offered == said
    commands = {(name, command.name) for name, command in host.commands()}
    assert commands == {
        (file.name, name) for file in bundled() if file.manifest for name in file.manifest.commands
    }


@pytest.mark.parametrize(
    ("kinds", "loaded"),
    [
        (set(), []),
        ({"process"}, []),
        ({"docker", "agentsvc"}, ["docker", "remote"]),
        ({"process", "nobodys"}, ["agent_sandbox", "docker", "kubernetes", "remote"]),
    ],
)
def test_first_party_plugins_of_no_configured_backend_are_left_out(
    kinds: set[str], loaded: list[str]
) -> None:
    host = PluginHost.load(points=(), kinds=frozenset(kinds))
    assert {plugin.name for plugin in host.plugins()} == {*loaded, *USUAL}


def test_settings_and_the_environment_say_which_plugins_a_server_needs() -> None:
    def loaded(**options: Any) -> set[str]:
        host = PluginHost.load(points=(), kinds=frozenset({"process"}), **options)
        return {plugin.name for plugin in host.plugins()}

    assert loaded() == USUAL
    for name in ("runtime_api", "sharing", "mcp_server", "sign_in", "acp_agent"):
        assert loaded(settings={name: {"enabled": True}}) == USUAL | {name}
    assert loaded(settings={"runtime_api": {"enabled": False}, "webhooks": {}}) == USUAL
    assert loaded(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) == USUAL | {"otel"}
    assert loaded(disable=["webhooks"]) == USUAL - {"webhooks"}


def test_the_kinds_of_the_configured_backends_are_known_without_plugins() -> None:
    tables: dict[str, dict[str, Any]] = {
        "docker": {},
        "big": {"type": "agentsvc"},
        "both": {"pool": ["big", "docker"]},
    }
    assert kinds_of(Config(backends=tables)) == {"docker", "agentsvc"}


def test_a_server_imports_no_plugin_that_it_does_not_need(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from agentsvc.app import build_app;"
        "from agentsvc.config.schema import Config, PluginsConfig;"
        "config = Config(plugins=PluginsConfig(disable=('attempts', 'automations', 'environments', 'githosts', 'webhooks')));"
        f"asyncio.run(build_app(config, data_dir=Path({str(tmp_path)!r})));"
        "names = [name.split('.') for name in sys.modules if name.startswith('agentsvc_plugins.')];"
        "print(*{name[1] for name in names})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["process"]


def test_a_door_that_is_on_imports_what_answers_with_the_first_request(tmp_path: Path) -> None:
    doors = ("sharing", "mcp_server", "acp_agent", "sign_in")
    late = {
        "sharing": {"masking", "page"},
        "mcp_server": {"methods", "tools", "resources", "reading"},
        "acp_agent": {"serving", "agent", "connection"},
        "sign_in": {"tokens"},
    }
    tables = {name: {"enabled": True} for name in doors}
    program = (
        "import asyncio, sys; from pathlib import Path; from agentsvc.app import build_app;"
        f"from agentsvc.config.schema import Config; config = Config(extensions={tables!r});"
        f"asyncio.run(build_app(config, data_dir=Path({str(tmp_path)!r}))); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert {f"agentsvc_plugins.{name}" for name in doors} <= imported
    not_yet = {f"agentsvc_plugins.{name}.{part}" for name, parts in late.items() for part in parts}
    assert not imported & (not_yet | {"joserfc", "agentsvc.cli.client"})


def test_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, agentsvc_cloud=BACKEND)
    info = tmp_path / "agentsvc_cloud-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: agentsvc-cloud\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[agentsvc]\ncloud = agentsvc_cloud\n")
    damaged = tmp_path / "other-1.dist-info"
    damaged.mkdir()
    (damaged / "entry_points.txt").write_text("[console_scripts]\nno value\n")
    for directory in (tmp_path, shutil.copytree(tmp_path, tmp_path / "again")):
        monkeypatch.syspath_prepend(directory)
    importlib.invalidate_caches()
    [plugin] = PluginHost.load(disable=OURS).plugins()
    assert (plugin.name, plugin.version, plugin.origin) == ("cloud", "3.1", "agentsvc-cloud")
    assert PluginHost.load(disable=[*OURS, "cloud"]).plugins() == []


HOOK = "from agentsvc.plugin.hookspecs import hookimpl\n@hookimpl\n"
CLASS = BACKEND.partition("@hookimpl")[0]
OFFER = "\n@hookimpl\ndef agentsvc_register_backends():\n    return [Other]\n"
BROKEN = {
    "division by zero": "1 / 0",
    "No module named 'absent'": "import absent",
    "invalid syntax": "this is no Python",
    "SystemExit: 3": "raise SystemExit(3)",
    "agentsvc_on_evnt": HOOK + "def agentsvc_on_evnt(event): pass",
    "evnt": HOOK + "def agentsvc_on_event(evnt): pass",
    "KeyError: 'gone'": HOOK + "def agentsvc_register_specs(): return [{}['gone']]",
    "does not define its `api_version`": CLASS
    + "class Other(CloudBackend):\n    api_version = None"
    + OFFER,
    "does not define its `Config`": CLASS + "class Other(CloudBackend):\n    Config = dict" + OFFER,
    "forbid_unknown_fields": CLASS
    + "class Loose(msgspec.Struct): pass\nclass Other(CloudBackend):\n    Config = Loose"
    + OFFER,
    "has an unknown capability": CLASS
    + "class Other(CloudBackend):\n    capabilities = frozenset(['fly'])"
    + OFFER,
}


@pytest.mark.parametrize(("cause", "text"), BROKEN.items(), ids=BROKEN)
def test_a_plugin_that_does_not_fit_stops_the_start(tmp_path: Path, cause: str, text: str) -> None:
    with pytest.raises(StartFailed) as caught:
        load(write(tmp_path / "plugins", bad=text))
    assert cause in caught.value.message
    assert "`bad`" in caught.value.message
    assert str(tmp_path / "plugins/bad.py") in caught.value.message


def test_two_plugins_of_one_name_stop_the_start(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", same=""), write(tmp_path / "two", same="")
    with pytest.raises(StartFailed, match="Two plugins are called `same`") as caught:
        PluginHost.load(dirs=[one, two])
    assert str(one) in caught.value.message
    assert str(two) in caught.value.message


def test_two_backends_of_one_name_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="The backend `cloud` exists twice") as caught:
        load(write(tmp_path, one=BACKEND, two=BACKEND))
    assert str(tmp_path / "one.py") in caught.value.message
    assert str(tmp_path / "two.py") in caught.value.message


def test_two_specs_of_one_id_stop_the_start(tmp_path: Path) -> None:
    text = HOOK + (
        "def agentsvc_register_specs():\n"
        "    from agentsvc.plugin.backend import Spec\n"
        "    return [Spec(id='process')]"
    )
    with pytest.raises(StartFailed, match="The spec `process` exists twice"):
        PluginHost.load(dirs=[write(tmp_path, other=text)])


def test_a_plugins_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "plugins")
    directory.chmod(0o777)
    with pytest.raises(StartFailed, match="can be written to by others") as caught:
        load(directory)
    assert caught.value.hint.startswith(f"run `chmod o-w {directory}`")


def test_a_plugins_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="cannot be read: No such file or directory"):
        load(tmp_path / "plugins")


def test_hook_calls_can_be_traced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentsvc.sandboxes.plugin_loader")
    load(write(tmp_path, cloud=BACKEND), is_traced=True)
    lines = [record.__dict__ for record in caplog.records]
    assert {"agentsvc_register_backends", "agentsvc_register_specs"} == {
        line["hook"] for line in lines
    }
    assert any("CloudBackend" in line.get("result", "") for line in lines)


# Backends


async def test_a_configured_backend_gets_its_table_and_its_own_directory(tmp_path: Path) -> None:
    host = load(write(tmp_path / "plugins", cloud=BACKEND))
    tables = {
        "cloud": {"region": "here"},
        # As from the environment, where all values are texts.
        "spare": {"type": "cloud", "region": "there", "is_fast": "true"},
    }
    registry = build(host, tmp_path, backends=tables)
    await registry.open()
    spare = registry.get("spare")
    assert msgspec.to_builtins(spare.config) == {
        "region": "there",
        "size": {"gigabytes": 1},
        "is_fast": True,
    }
    assert spare.context.state_dir == tmp_path / "spare"
    assert spare.context.instance_id == "here"
    assert registry.names() == ["cloud", "spare"]


NOT_FITTING: dict[str, dict[str, Any]] = {
    "missing required field `region`": {"backends": {"cloud": {}}},
    "unknown field `area`": {"backends": {"cloud": {"area": "x"}}},
    r"Expected `int`.*\.size\.gigabytes": {
        "backends": {"cloud": {"region": "x", "size": {"gigabytes": "big"}}}
    },
    "of type `nimbus`, and no plugin offers that": {"backends": {"nimbus": {}}},
    "default_backend is `cloud`, and there is no such backend": {"backends": {}},
    "default_spec is `big`, and there is no such spec": {
        "sandboxes": SandboxesConfig(default_backend="cloud", default_spec="big")
    },
    "specs.big is for the backend `docker`": {"specs": {"big": SpecConfig(backend="docker")}},
    "specs.big is invalid: The fake backend cannot enforce limits": {
        "specs": {"big": SpecConfig(limits=SpecLimitsConfig(pids=1))}
    },
}


@pytest.mark.parametrize(("cause", "tables"), NOT_FITTING.items(), ids=NOT_FITTING)
def test_a_configuration_that_does_not_fit_stops_the_start(
    tmp_path: Path, cause: str, tables: dict[str, Any]
) -> None:
    host = load(write(tmp_path / "plugins", cloud=BACKEND))
    with pytest.raises(StartFailed, match=cause):
        build(host, tmp_path, **{"backends": {"cloud": {"region": "x"}}, **tables})


def test_a_backend_of_another_contract_matters_only_if_it_is_used(tmp_path: Path) -> None:
    text = CLASS + "class Other(CloudBackend):\n    name = 'old'\n    api_version = 0" + OFFER
    host = PluginHost.load(dirs=[write(tmp_path / "plugins", old=text)])
    assert host.backend_types()["old"].api_version == 0
    BackendRegistry.build(host, Config(), instance_id="x", state_dir=tmp_path)
    with pytest.raises(StartFailed, match="`old` is written for version 0 of the contract"):
        BackendRegistry.build(
            host, Config(backends={"old": {"region": "x"}}), instance_id="x", state_dir=tmp_path
        )


def test_the_built_in_backend_needs_no_table(tmp_path: Path) -> None:
    host = PluginHost.load()
    registry = BackendRegistry.build(host, Config(), instance_id="x", state_dir=tmp_path)
    assert registry.names() == ["process"]
    assert registry.specs() == [DEFAULT_SPEC]


@pytest.mark.parametrize("offered", ["a text", Port])
def test_what_is_no_extension_is_told_with_its_plugin(offered: object) -> None:
    class Odd:
        @hookimpl
        def agentsvc_register_extensions(self) -> list[object]:
            return [offered]

    host = PluginHost()
    host.add("odd", Odd(), version="", origin="here")
    with pytest.raises(
        StartFailed, match=r"Plugin `odd` offers `.*`, which is not a subclass of Extension"
    ):
        make_extensions(host, Config())


async def test_a_backend_that_cannot_be_closed_leaves_no_other_open() -> None:
    closed = []

    class Closing(FakeBackend):
        async def close(self) -> None:
            closed.append(self)
            raise RuntimeError("closing failed")

    fake = FakeWorld().backend()
    several = {name: Closing(fake.config, fake.context) for name in ("first", "second")}
    await BackendRegistry(several, []).close()
    assert closed == list(several.values())


async def test_a_backend_that_cannot_be_opened_is_out_of_reach_until_it_can(
    tmp_path: Path,
) -> None:
    class Moody(FakeBackend):
        world = FakeWorld()

        async def open(self) -> None:
            await super().probe()

    backend = Moody(FakeWorld().backend().config, FakeWorld().backend().context)
    registry = BackendRegistry({"moody": backend}, [])
    Moody.world.unreachable = True
    await registry.open()
    with pytest.raises(BackendUnavailable, match="`moody` cannot be reached"):
        registry.get("moody")
    assert not (await registry.probe())["moody"].ok
    Moody.world.unreachable = False
    await registry.open()
    assert registry.get("moody") is backend
    assert (await registry.probe())["moody"].ok
    await registry.close()
    with pytest.raises(BackendUnavailable):
        registry.get("moody")


async def test_a_backend_that_fails_as_it_should_not_keeps_no_other_from_being_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(FakeBackend):
        world = FakeWorld()

        async def open(self) -> None:
            raise KeyError("no idea")

    good = FakeWorld().backend()
    registry = BackendRegistry({"bad": Bad(good.config, good.context), "good": good}, [])
    await registry.open()
    assert registry.get("good") is good
    with pytest.raises(BackendUnavailable, match="`bad` cannot be reached"):
        registry.get("bad")
    assert [record.__dict__["backend"] for record in caplog.records] == ["bad"]


def test_a_backend_that_is_not_configured_any_more_is_out_of_reach(tmp_path: Path) -> None:
    registry = BackendRegistry({}, [])
    with pytest.raises(BackendUnavailable, match="`old` is not configured"):
        registry.get("old")


# Specs


def test_the_config_file_wins_over_a_plugins_spec_and_the_default_comes_first(
    tmp_path: Path,
) -> None:
    config = msgspec.structs.replace(
        FAKE,
        sandboxes=SandboxesConfig(default_backend="fake", default_spec="special"),
        specs={
            "fake": SpecConfig(command=("mine",)),
            "special": SpecConfig(command=("special",)),
        },
    )
    registry = BackendRegistry.build(
        fake_host(FakeWorld()), config, instance_id="x", state_dir=tmp_path
    )
    assert [(spec.id, spec.command) for spec in registry.specs()] == [
        ("special", ("special",)),
        ("fake", ("mine",)),
    ]


def test_specs_of_the_default_backend_come_before_others(tmp_path: Path) -> None:
    host = PluginHost.load()
    host.add("fake", FakeWorld().plugin(), version="", origin="this test")
    registry = BackendRegistry.build(host, FAKE, instance_id="x", state_dir=tmp_path)
    assert [spec.id for spec in registry.specs()] == ["fake", "process"]


def test_a_spec_that_only_adds_a_variable_takes_the_rest_from_its_backends_own(
    tmp_path: Path,
) -> None:
    config = Config(specs={"mine": SpecConfig(env={"DEBUG": "1", "COLUMNS": "90"})})
    registry = BackendRegistry.build(PluginHost.load(), config, instance_id="x", state_dir=tmp_path)
    mine = registry.specs()[0]
    assert (mine.id, mine.command, mine.ports) == (
        "mine",
        DEFAULT_SPEC.command,
        DEFAULT_SPEC.ports,
    )
    assert mine.env == {**DEFAULT_SPEC.env, "DEBUG": "1", "COLUMNS": "90"}


def test_a_spec_of_a_backend_that_is_not_configured_is_not_offered(tmp_path: Path) -> None:
    class Offers:
        @hookimpl
        def agentsvc_register_specs(self) -> list[Spec]:
            return [Spec(id="cloud", backend="cloud", ports=(Port(name="agent"),))]

    host = fake_host(FakeWorld())
    host.add("offers", Offers(), version="", origin="this test")
    registry = BackendRegistry.build(host, FAKE, instance_id="x", state_dir=tmp_path)
    assert [spec.id for spec in registry.specs()] == ["fake"]
