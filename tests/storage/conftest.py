"""An open database for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentsvc.storage.database import Database


@pytest.fixture
def db_path(tmp_path: Path) -> Path:
    return tmp_path / "agentsvc.db"


@pytest.fixture
async def db(db_path: Path) -> AsyncIterator[Database]:
    database = await Database.open(db_path)
    try:
        yield database
    finally:
        await database.close()
