"""A new setting of both generations is added in the table of fields, and in no other file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentsvc

PACKAGE = Path(agentsvc.__file__).parent
ADDED = {
    "    v1_enabled: bool | None = None\n": "    editor_theme: str | None = None\n",
    "    v1_enabled: bool | UnsetType | None = UNSET\n": (
        "    editor_theme: FlatText | UnsetType | None = UNSET\n"
        '    """Theme of the editor; null: not set"""\n'
    ),
    "    v1_enabled: bool\n": (
        '    editor_theme: str | None\n    """Theme of the editor; null: not set"""\n'
    ),
}
"""By line of the table, what is put behind it."""

PROGRAM = """\
import asyncio, json, sys, tempfile
from pathlib import Path

from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Service

async def main(data):
    service = Service(data, FAST, lambda: load_plugins(fake=FakeWorld().plugin()))
    await service.start()
    client = await service.make_client()
    found = []
    for path, theme in (("/api/settings", "dark"), ("/api/v1/settings", "light")):
        await client.post(path, json={"editor_theme": theme})
        for one in ("/api/settings", "/api/v1/settings"):
            found.append((await client.get(one)).json()["editor_theme"])
    refused = await client.post("/api/settings", json={"editor_theme": 1})
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    texts = {
        schema["properties"]["editor_theme"]["description"]
        for schema in schemas.values()
        if "editor_theme" in schema.get("properties", {})
    }
    await service.close()
    print(json.dumps([found, refused.status, sorted(texts)]))

with tempfile.TemporaryDirectory() as data:
    asyncio.run(main(Path(data)))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a directory with the server as it is, but for the table of settings."""
    for name in ("plugins", "pyproject.toml"):
        (tmp_path / name).symlink_to(PACKAGE.parent / name)
    shutil.copytree(PACKAGE, tmp_path / "agentsvc", ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "agentsvc" / "settings" / "fields.py"
    text = table.read_text()
    for line, added in ADDED.items():
        assert text.count(line) == 1, line
        text = text.replace(line, line + added)
    table.write_text(text)
    return tmp_path


def _environment() -> dict[str, str]:
    # The copy is not what coverage is to measure.
    return {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")}


def test_a_setting_is_added_in_one_file(copy: Path) -> None:
    path = os.pathsep.join([str(copy), str(PACKAGE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**_environment(), "PYTHONPATH": path},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, refused, texts = json.loads(done.stdout.splitlines()[-1])
    assert found == ["dark", "dark", "light", "light"]
    assert refused == 422
    assert texts == ["Theme of the editor; null: not set"]
