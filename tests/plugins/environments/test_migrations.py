"""Rows of environments as earlier versions wrote them, after the migrations since."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsvc.extension.tables import migrate
from agentsvc.storage.database import Database, Transaction
from tests.plugin_loading import part
from tests.storage.users import adding

if TYPE_CHECKING:
    from environments.table import MIGRATIONS, EnvironmentTable
else:
    MIGRATIONS = part("environments.table").MIGRATIONS
    EnvironmentTable = part("environments.table").EnvironmentTable

USER = "u" * 32
MOMENT = "2026-01-01T00:00:00.000000Z"
COLUMNS = (
    *("id", "user_id", "definition", "status", "attempt", "reason", "log", "sandbox_id"),
    *("layer_id", "backend", "spec_id", "fingerprint", "size_bytes", "prepared_at"),
    *("created_at", "updated_at", "container"),
)
"""Those of version 2."""
INSERT = (
    f"INSERT INTO plugin_environments_environments ({', '.join(COLUMNS)})"  # noqa: S608  # names of columns
    f" VALUES ({', '.join(f':{name}' for name in COLUMNS)})"
)


def row(name: str, status: str, *, layer: str = "", shared: bool = False) -> dict[str, Any]:
    definition = {"name": name, "setup_script": f"make {name}", "shared": shared}
    return {
        "id": name,
        "user_id": USER,
        "definition": json.dumps(definition),
        "status": status,
        "attempt": "1",
        "reason": "",
        "log": "made",
        "sandbox_id": None,
        "layer_id": layer,
        "backend": "process" if layer else "",
        "spec_id": "default" if layer else "",
        "fingerprint": "",
        "size_bytes": 4096 if layer else 0,
        "prepared_at": MOMENT if layer else None,
        "created_at": MOMENT,
        "updated_at": MOMENT,
        "container": '{"files":[".devcontainer.json"]}',
    }


ROWS = (
    row("ready", "ready", layer="l1"),
    row("shared", "ready", layer="l2", shared=True),
    row("failed", "failed", layer="l3"),
    # It may have been prepared with secrets, before it was changed to be shared.
    row("shared-failed", "failed", layer="l4", shared=True),
    row("shared-waiting", "waiting", layer="l5", shared=True),
    row("new", "waiting"),
)
KEPT = {"ready": "l1", "shared": "l2", "failed": "l3"}


async def test_layers_of_version_2_are_kept_with_what_made_them_but_for_those_to_be_shared(
    tmp_path: Path,
) -> None:
    database = await Database.open(tmp_path / "agentsvc.db")
    try:
        await migrate(database, "environments", MIGRATIONS[:2])
        await database.write(adding(USER))

        async def insert(tx: Transaction) -> None:
            for one in ROWS:
                await tx.run(INSERT, one)

        await database.write(insert)
        for _ in range(2):
            await migrate(database, "environments", MIGRATIONS)
            found = {one.id: one for one in await EnvironmentTable.of_user(database, USER)}
            assert set(found) == {one["id"] for one in ROWS}
            assert {one.id: one.layer_id for one in found.values() if one.layer_id} == KEPT
            for one in found.values():
                is_kept = one.id in KEPT
                assert one.made_from == (one.definition if is_kept else None)
                assert one.size_bytes == (4096 if is_kept else 0)
                assert one.earlier_layer_id == ""
                assert one.container.files == (".devcontainer.json",)
            assert await EnvironmentTable.layers(database) == {"process": set(KEPT.values())}
    finally:
        await database.close()
