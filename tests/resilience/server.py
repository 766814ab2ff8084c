"""A server under test: `agentsvc serve` in a process of its own, with its sandboxes in a Place."""

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base.values import monotonic
from agentsvc.testing.llm import Script, ScriptedModel
from tests.fake_agent import FakeAgent
from tests.http.v1.streaming import Feeder
from tests.live.client import PATIENCE
from tests.live.installation import Installation
from tests.resilience.place import PLUGIN, Place, open_place
from tests.service import Client

_CONFIG: Final[Mapping[str, Any]] = {
    "server": {"shutdown_grace_seconds": 10.0, "device_login": True},
    "sandboxes": {
        "default_backend": "place",
        "default_spec": "place",
        "sweep_seconds": 0.5,
        "orphan_grace_seconds": 0.0,
        # So that none is ever made of local processes, whichever spec is named.
        "isolation": "vm",
    },
    "conversations": {
        "first_answer_seconds": 0.1,
        "hand_over_seconds": 0.6,
        "title_wait_seconds": 0.1,
        "webhook_flush_seconds": 0.05,
        "sync_seconds": 0.5,
    },
    "git": {"check_tokens": False, "api_seconds": 3.0},
    "runtime_api": {"enabled": True},
    "sharing": {"enabled": True},
    "sign_in": {"enabled": True},
    "acp_agent": {"enabled": True},
    "mcp_server": {"enabled": True},
    # Rows send as fast as they can, and with bad keys; `abuse` tries the limits.
    "limits": {"requests_per_minute": 0, "refused_per_minute": 0},
    "log": {"level": "warning"},
}
"""A configuration in which the resilience tests waits for nothing but the server."""


class Server:
    """One installation and the server on it, which a row may end in any way, and start again."""

    def __init__(self, installation: Installation, place: Place, config: Path) -> None:
        self.installation = installation
        self.place = place
        self.config = config
        self.client: Client = installation.client()
        self.seen_at: Path | None = None
        """Where others see the data directory, if not where the server does."""
        self.starts = 0
        self.slowest_start_seconds = 0.0
        self._others: list[Client] = []

    @property
    def url(self) -> str:
        return self.installation.url

    @property
    def database(self) -> Path:
        return self.installation.data.database

    async def start(self) -> None:
        """Start it and wait until it answers; remembers the longest time this has taken."""
        began = monotonic()
        await self.installation.start()
        self.slowest_start_seconds = max(self.slowest_start_seconds, monotonic() - began)
        self.starts += 1
        self.client.base_url = self.url
        for client in self._others:
            client.base_url = self.url

    async def kill(self) -> None:
        await self.installation.kill()

    def client_with(self, key: str | None) -> Client:
        """Return a further client, which is closed with the server."""
        client = Client(self.url, key, patience=PATIENCE)
        self._others.append(client)
        return client

    async def add_user(self, name: str, role: str = "member", scope: str = "admin") -> Client:
        """Return a client of a new user."""
        user = (await self.client.post("/api/v1/users", json={"name": name, "role": role})).json()
        made = await self.client.post(
            f"/api/v1/users/{user['id']}/keys", json={"name": "campaign", "scope": scope}
        )
        return self.client_with(made.json()["key"])

    async def feeder(self, client: Client | None = None) -> Feeder:
        """Start a conversation in which nothing happens but what is reported."""
        client = client or self.client
        await client.save_settings()
        conversation_id = await client.start_conversation(None)
        found = await client.conversation(conversation_id)
        sandbox = self.client_with(found["session_api_key"])
        return Feeder(conversation_id=conversation_id, sandbox=sandbox)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the database itself, past the server."""
        seen = self.database if self.seen_at is None else self.seen_at / self.database.name
        with contextlib.closing(sqlite3.connect(f"file:{seen}?mode=ro", uri=True)) as db:
            return db.execute(sql, values).fetchall()

    def faults(self) -> list[str]:
        """Return what `integrity_check` and `foreign_key_check` say of the database."""
        found = [str(row[0]) for row in self.query("PRAGMA integrity_check")]
        lost = [f"foreign key {row}" for row in self.query("PRAGMA foreign_key_check")]
        return [text for text in found if text != "ok"] + lost

    async def close(self) -> None:
        for client in self._others:
            await client.close()
        self.place.world.close()
        process = self.installation
        with contextlib.suppress(AssertionError):
            await process.kill()
        await process.close()


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    scripts: dict[str, Script] | None = None,
    agent: FakeAgent | None = None,
    launcher: Sequence[str] = (),
    is_started: bool = True,
) -> AsyncIterator[Server]:
    """Give a server on new data, started unless said otherwise; all of it ends with it."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240  # a moment
    async with open_place(scripts, agent) as place:
        installation = Installation(
            directory,
            ScriptedModel(port=9),  # never asked
            {"AGENTSVC_CONFIG": str(directory / "config.toml"), **(environment or {})},
            launcher=launcher,
        )
        server = Server(installation, place, write_config(directory, place, config or {}))
        try:
            if is_started:
                await server.start()
            yield server
        finally:
            await server.close()


def write_config(directory: Path, place: Place, config: Mapping[str, Any]) -> Path:
    """Write the configuration of a server, and the plugin it loads."""
    plugins = directory / "plugins"
    plugins.mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(PLUGIN, plugins / PLUGIN.name)
    whole = {**_CONFIG, "plugins": {"dirs": [str(plugins)]}}
    whole["backends"] = {"place": {"url": place.url}}
    for section, keys in config.items():
        whole[section] = {**whole.get(section, {}), **keys}
    file = directory / "config.toml"
    file.write_text("".join(_tables("", whole)))
    return file


def _tables(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of TOML and those in it."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    yield f"[{name}]\n" if name else ""
    for key in table.keys() - inner.keys():
        yield f"{key} = {_inline(table[key])}\n"
    for key, value in inner.items():
        yield from _tables(f"{name}.{key}" if name else key, value)


def _inline(value: Any) -> str:
    """Return a value of TOML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return msgspec.json.encode(value).decode()


def command(*arguments: str, time_limit: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run a command of agentsvc and return what it said. Blocks."""
    return subprocess.run(
        [sys.executable, "-m", "agentsvc", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=time_limit,
        check=False,
    )
