"""Secrets stay secret: canaries go in by every input, and are looked for wherever something comes out.

In logs, events, exports, errors, webhooks, metrics, what processes are started with and have around
them, the bytes of the database and those of a backup. What an owner asks to be shown may be shown.
"""

import asyncio
import gzip
from pathlib import Path
from typing import Any, Final

from agentsvc.testing.llm import DEMO
from tests.receivers import Receiver
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.rows.canaries_inside import look_inside
from tests.resilience.server import Server, command, serving

CANARIES: Final = 50
_V1: Final = "/api/v1"
_SETTINGS: Final = frozenset(
    {"/api/settings", f"{_V1}/settings", f"{_V1}/users/me", f"{_V1}/settings/agent-schema"}
)
_OF_OWNER: Final = frozenset(
    {"the conversation", "the conversation in V0", f"{_V1}/sandboxes/search"}
)
"""Where an owner is given the key of a sandbox of theirs."""


class Canaries:
    """Makes them, each with a name that says by which input it went in."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.made: dict[str, bytes] = {}
        self._shown: set[str] = set()

    def new(self, where: str, *, is_shown: bool = False) -> str:
        """Return a new one; one that `is_shown` is no secret to who reads the settings."""
        text = f"canary{self._seed}x{len(self.made):03d}x{where.replace(' ', '')}"
        self._keep(where, text, is_shown=is_shown)
        return text

    def take(self, where: str, secret: str) -> None:
        """Look for a secret, too, that the server itself has made."""
        self._keep(where, secret, is_shown=False)

    def found_in(self, data: bytes, *, is_settings: bool = False) -> list[str]:
        shown = self._shown if is_settings else frozenset()
        return [name for name, text in self.made.items() if name not in shown and text in data]

    def _keep(self, where: str, text: str, *, is_shown: bool) -> None:
        name = f"{where} {len(self.made)}"
        self.made[name] = text.encode()
        if is_shown:
            self._shown.add(name)


async def _put_in(server: Server, canaries: Canaries, receiver: str) -> str:
    """Send canaries by every input there is; return a conversation that knows them."""
    client = server.client
    new = canaries.new
    await client.save_settings()
    for field in ("llm_api_key", "search_api_key", "sandbox_api_key"):
        await _sent(client, "/api/settings", {field: new(f"settings {field}")})
        await _sent(client, f"{_V1}/settings", {field: new(f"v1 {field}")})
    await _sent(
        client,
        f"{_V1}/settings",
        {
            "agent_settings_diff": {
                "llm": {
                    "api_key": new("nested model key"),
                    "aws_secret_access_key": new("aws key"),
                    "extra_headers": {"X-Key": new("header of a model")},
                    "litellm_extra_body": {"deep": [new("body of a model", is_shown=True)]},
                },
            }
        },
    )
    await _sent(
        client,
        "/api/settings",
        {"secrets_store": {"custom_secrets": {"OF_SETTINGS": {"secret": new("custom secret")}}}},
    )
    query = f"?key={new('query of a tool server', is_shown=True)}"
    servers = [{"url": f"https://mcp.example.org/sse{query}", "api_key": new("mcp sse")}]
    more = [{"url": "https://mcp.example.org/http", "api_key": new("mcp http")}]
    local: list[dict[str, Any]] = [
        {"name": "local", "command": "true", "env": {"TOKEN": new("mcp env")}}
    ]
    local[0]["args"] = ["--token", new("argument of a tool server", is_shown=True)]
    mcp = {"sse_servers": servers, "shttp_servers": more, "stdio_servers": local}
    await _sent(client, "/api/settings", {"mcp_config": mcp})
    profile = {"llm": {"model": "openai/x", "api_key": new("profile key")}}
    await client.post(f"{_V1}/settings/profiles/bird", json=profile)
    for provider in ("github", "gitlab", "bitbucket", "forgejo"):
        tokens = {"provider_tokens": {provider: {"token": new(f"token {provider}")}}}
        await _sent(client, "/api/add-git-providers", tokens)
    for number in range(10):
        body = {"name": f"SECRET_{number}", "value": new("secret")}
        await _sent(client, f"{_V1}/secrets", body)
    for number in range(5):
        body = {"name": f"OLD_{number}", "value": new("v0 secret")}
        await _sent(client, "/api/secrets", body)
    hook = await client.post(f"{_V1}/webhook-subscriptions", json={"url": receiver})
    canaries.take("secret of a webhook", hook.json()["secret"])
    for scope in ("read", "run", "admin"):
        made = await client.post("/api/keys", json={"name": scope, "scope": scope})
        canaries.take(f"key to {scope}", made.json()["key"])
    login = await client.post(f"{_V1}/logins", json={"api_key": client.key})
    canaries.take("cookie", login.headers["Set-Cookie"].partition(";")[0].partition("=")[2])
    canaries.take("page token of a login", login.json()["page_token"])
    order: dict[str, Any] = {
        "secrets": {f"GIVEN_{number}": new("start secret") for number in range(4)},
        "title": "canaries",
    }
    name = await client.start_conversation("work", **order)
    found = await client.wait_for_execution(name, "finished")
    canaries.take("key of a sandbox", found["session_api_key"])
    await _send_wrongly(server, canaries)
    return name


async def _sent(client: Any, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json=body)
    assert answer.status in (200, 201), f"{path}: {answer.text}"


async def _send_wrongly(server: Server, canaries: Canaries) -> None:
    """Put canaries where they are refused: errors and logs must not repeat them."""
    client, new = server.client, canaries.new
    url = f"https://user:{new('password in a repository')}@git.example.org/a/b"
    await client.post(f"{_V1}/app-conversations", json={"selected_repository": url})
    await client.post("/api/conversations", json={"repository": url})
    hook = {"url": f"https://user:{new('password in a hook')}@receiver.example.org/"}
    await client.post(f"{_V1}/webhook-subscriptions", json=hook)
    base = {"llm_base_url": f"https://user:{new('password of a model')}@model.example.org/v1"}
    await client.post("/api/settings", json=base)
    await client.post("/api/settings", json={"llm_model": "openai/scripted", "llm_base_url": ""})
    await client.post("/api/settings", json={"llm_api_key": [new("key of a wrong type")]})
    await client.post(f"{_V1}/secrets", json={"name": 1, "value": new("refused secret")})
    for header in ("X-Session-API-Key", "X-Access-Token"):
        await server.client_with(None).get("/api/settings", headers={header: new("wrong key")})
    bearer = {"Authorization": f"Bearer {new('wrong bearer')}"}
    await server.client_with(None).get("/api/settings", headers=bearer)
    query = f"{_V1}/events/stream?session_api_key={new('wrong query key')}"
    await server.client_with(None).get(query)
    wrong = {"api_key": new("wrong login")}
    await server.client_with(None).post(f"{_V1}/logins", json=wrong)


async def _outputs(server: Server, name: str, receiver: Receiver) -> dict[str, bytes]:
    """Return all that comes out of a server, by where."""
    client = server.client
    found: dict[str, bytes] = {}
    for path in (
        "/api/settings",
        f"{_V1}/settings",
        f"{_V1}/settings/profiles",
        f"{_V1}/settings/profiles/bird",
        "/api/secrets",
        f"{_V1}/secrets/search",
        f"{_V1}/users/me",
        f"{_V1}/app-conversations/start-tasks/search",
        f"{_V1}/conversation/{name}/events/search",
        f"{_V1}/app-conversations/{name}/download",
        f"/api/conversations/{name}/trajectory",
        f"/api/conversations/{name}/events",
        f"{_V1}/webhook-subscriptions",
        f"{_V1}/sandboxes/search",
        f"{_V1}/audit-log",
        "/metrics",
        "/openapi.json",
        "/server_info",
    ):
        found[path] = (await client.get(path)).body
    found["the conversation"] = (await client.get(f"{_V1}/app-conversations?ids={name}")).body
    found["the conversation in V0"] = (await client.get(f"/api/conversations/{name}")).body
    found["webhooks"] = b"".join(one.body for one in receiver.received)
    found["log"] = server.installation.log.encode()
    pid = server.installation.pid
    found["argv"] = Path(f"/proc/{pid}/cmdline").read_bytes()  # noqa: ASYNC240  # of /proc
    found["environment"] = Path(f"/proc/{pid}/environ").read_bytes()  # noqa: ASYNC240  # of /proc
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()  # noqa: ASYNC240  # of /proc
    for child in children:
        for part in ("cmdline", "environ"):
            found[f"child {part} {child}"] = Path(f"/proc/{child}/{part}").read_bytes()  # noqa: ASYNC240  # of /proc
    return found


async def _stored(server: Server) -> dict[str, bytes]:
    """Return the bytes of every file of a server, and those of a backup."""
    data = server.installation.data.path
    backup = server.installation.directory / "backup.tar.gz"
    done = await asyncio.to_thread(command, "backup", str(backup), "--data-dir", str(data))
    assert done.returncode == 0, done.stderr
    files = {str(file): file.read_bytes() for file in data.rglob("*") if file.is_file()}
    return {
        **files,
        "backup": gzip.decompress(backup.read_bytes()),
        "of a backup": done.stderr.encode(),
    }


async def run(ground: Ground) -> Outcome:
    canaries = Canaries(ground.seed)
    allows = {"webhooks": {"allow_private": True}, "log": {"level": "debug"}}
    async with (
        Receiver() as receiver,
        serving(ground.place("server"), config=allows, scripts={"demo": DEMO}) as server,
    ):
        name = await _put_in(server, canaries, receiver.url)
        places = await _outputs(server, name, receiver)
        places |= await _stored(server)
        # The search itself has to find what is there.
        shown = await server.client.get(
            f"{_V1}/settings", headers={"X-Expose-Secrets": "plaintext"}
        )
        assert canaries.found_in(canaries.made[next(iter(canaries.made))])
        asked = len(canaries.found_in(shown.body))
    found = [
        f"{one} in {where}"
        for where, data in places.items()
        for one in canaries.found_in(data, is_settings=where in _SETTINGS)
        if not (where in _OF_OWNER and one.startswith("key of a sandbox"))
    ]
    looked, inside = await look_inside(ground)
    found += inside
    return Outcome(
        did=(
            f"{len(canaries.made)} canaries as keys, tokens, secrets, passwords in URLs and wrong keys;"
            f" looked for in {len(places)} places with the log at debug;"
            f" {asked} were shown to the owner on request; at the defaults, keys and secrets of another"
            f" user in {looked:,} things that a real sandbox can read, in what processes show, and in"
            " what a first start prints"
        ),
        figures=(
            Figure(what="canaries", value=len(canaries.made), at_least=CANARIES),
            zero("found in the clear", found),
        ),
        problems=tuple(found),
    )


ROW: Final = Row(name="canaries", half=Half.IN, promise="secrets stay secret", run=run)
