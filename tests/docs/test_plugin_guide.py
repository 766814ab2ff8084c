"""The guide for plugin authors is true: hooks, errors, switches and code."""

import inspect
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import StartFailed
from agentsvc.base.values import now
from agentsvc.cli import cli
from agentsvc.config.data_directory import DataDirectory
from agentsvc.http.keys import DATABASE, SUPERVISOR
from agentsvc.plugin import hookspecs
from agentsvc.plugin.files import Manifest, PluginFile
from agentsvc.plugin.hookspecs import EVENT_KINDS, Event
from agentsvc.sandboxes.plugin_loader import Notifier, PluginHost
from agentsvc.storage.database_file import check_schema
from agentsvc.testing import FakeBackend, FakeWorld, KitOptions, backend_contract
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Service

GUIDE = (Path(__file__).parents[2] / "plugins" / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_every_hook_is_explained_with_its_arguments() -> None:
    hooks = {name: one for name, one in vars(hookspecs).items() if name.startswith("agentsvc_")}
    shown = dict(re.findall(r"^\| `(agentsvc_\w+)\((\w*)\)` \|", GUIDE, re.MULTILINE))
    assert shown == {
        name: ", ".join(inspect.signature(one).parameters) for name, one in hooks.items()
    }


def test_every_import_of_the_guide_is_a_public_module() -> None:
    modules = set(re.findall(r"^from (agentsvc\S*) import", "\n".join(BLOCKS), re.MULTILINE))
    assert modules <= {
        "agentsvc.plugin.backend",
        "agentsvc.base.errors",
        "agentsvc.extension.server",
        "agentsvc.extension.web",
        "agentsvc.plugin.hookspecs",
        "agentsvc.testing",
        "agentsvc.base.values",
    }


async def test_the_plugin_of_the_guide_hears_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sample.py").write_text(BLOCKS[0])
    host = PluginHost.load(dirs=[tmp_path], disable=["process"])
    await Notifier(host).tell(Event(id="1", kind="sandbox.changed", at=now(), subject_id="abc"))
    [record] = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert record.__dict__["kind"] == "sandbox.changed"


def test_every_event_and_every_key_of_a_manifest_is_explained() -> None:
    assert set(re.findall(r"^\| `((?:conversation|sandbox)\.\w+)` \|", GUIDE, re.MULTILINE)) == set(
        EVENT_KINDS
    )
    table = GUIDE.partition("| key | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [
        "backends",
        "environ",
        "is_default",
        "commands",
        "settings",
    ]
    assert set(Manifest.__struct_fields__) == set(
        re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    )


async def test_the_plugin_of_the_guide_adds_to_a_server(
    tmp_path: Path, fake_world: FakeWorld
) -> None:
    service = notes_service(tmp_path, fake_world, keep_days="1")
    await service.start()
    try:
        client = await service.make_client()
        made = (await client.post("/api/notes", json={"text": "milk"})).json()
        path = f"/api/notes/{made['id']}"
        await service.restart()
        assert (await client.get(path)).json() == {"id": made["id"], "text": "milk"}
        stranger = await service.make_client("bob", Role.MEMBER)
        assert (await stranger.get(path)).status == 404
        assert (await service.client_with(None).get(path)).status == 401
        wrong = await client.post("/api/notes", json={"text": 1})
        assert (wrong.status, wrong.json()["code"]) == (422, "invalid_request")
        described = (await client.get("/openapi.json")).json()["paths"]
        assert described["/api/notes/{note_id}"]["get"]["summary"] == "Get a note"
        assert service.app[SUPERVISOR].is_running("old notes")
        assert check_schema(DataDirectory(path=service.data_dir).database) == []
    finally:
        await service.close()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"extensions": {"notes": {"days": 1}}}, "settings of the plugin `notes` are invalid"),
        ({"extensions": {"nobody": {}}}, "unknown plugins: nobody"),
    ],
)
async def test_settings_that_do_not_fit_stop_the_start(
    tmp_path: Path, fake_world: FakeWorld, changed: dict[str, Any], words: str
) -> None:
    service = notes_service(tmp_path, fake_world)
    service.config = msgspec.structs.replace(FAST, **changed)
    with pytest.raises(StartFailed, match=words):
        await service.start()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('prefix = "/api/notes"', 'prefix = "notes"', "begins with a slash"),
        ('path="/{note_id}"', 'path="/../v1/users/me"', "already"),
        ("plugin_notes_notes (id", "notes (id", "creates or drops the table `notes`"),
        ("CREATE TABLE plugin", "CREATE VIEW plugin_notes_v AS SELECT 1; --", "the view"),
    ],
)
async def test_an_extension_that_does_not_fit_stops_the_start(
    tmp_path: Path, fake_world: FakeWorld, old: str, new: str, words: str
) -> None:
    text = BLOCKS[1].replace(old, new, 1)
    if "users/me" in new:
        text = text.replace('prefix = "/api/notes"', 'prefix = "/api/v1/users"')
        text = text.replace("/../v1/users/me", "/me")
    service = notes_service(tmp_path, fake_world, text=text)
    with pytest.raises(StartFailed, match=words):
        await service.start()
    await service.close()


async def test_tables_of_a_newer_plugin_are_left_alone(
    tmp_path: Path, fake_world: FakeWorld
) -> None:
    newer = BLOCKS[1].replace(
        ' STRICT;",\n',
        ' STRICT;",\n        "ALTER TABLE plugin_notes_notes ADD COLUMN more TEXT;",\n',
    )
    assert newer != BLOCKS[1]
    service = notes_service(tmp_path, fake_world)
    await service.start()
    service.make_plugins = notes_service(tmp_path, fake_world, text=newer).make_plugins
    await service.restart()
    assert await service.app[DATABASE].all("SELECT more FROM plugin_notes_notes") == []
    service.make_plugins = notes_service(tmp_path, fake_world).make_plugins
    with pytest.raises(StartFailed, match="have version 2"):
        await service.restart()
    await service.close()


def test_the_command_of_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "notes.py").write_text(BLOCKS[1])
    config = tmp_path / "config.toml"
    config.write_text('[plugins]\ndirs = ["plugins"]\n')
    monkeypatch.setenv("AGENTSVC_CONFIG", str(config))
    assert CliRunner().invoke(cli, ["notes"]).output == "use /api/notes\n"
    assert "  notes" in CliRunner().invoke(cli, ["--help"]).output
    config.write_text('[plugins]\ndirs = ["plugins"]\ndisable = ["notes"]\n')
    assert CliRunner().invoke(cli, ["notes"]).exit_code == 2


def notes_service(
    directory: Path, world: FakeWorld, *, text: str = BLOCKS[1], **settings: str
) -> Service:
    """Return a server with the plugin of the guide, or a change of it."""
    file = directory / f"{len(list(directory.iterdir()))}.py"
    file.write_text(text)

    def make_plugins() -> PluginHost:
        host = load_plugins(fake=world.plugin())
        host.add_file(PluginFile(name="notes", path=file))
        return host

    config = msgspec.structs.replace(FAST, extensions={"notes": settings})
    return Service(directory / "data", config, make_plugins)


def test_the_tests_of_the_guide_are_tests() -> None:
    def config(**_values: str) -> Any:
        return None

    names: dict[str, Any] = {"FirecrackerBackend": FakeBackend, "FirecrackerConfig": config}
    for block in BLOCKS[2:]:
        exec(block, names)  # noqa: S102  # it is what the guide tells to run
    assert names["backend_contract"] is backend_contract
    assert isinstance(names["OPTIONS"], KitOptions)
    assert any(name.startswith("test_") for name in vars(names["TestFirecracker"]))
