"""What a sandbox can do at the server with all that it can see there, against another user.

Part of the row `users`: real sandboxes at the defaults. The keys of the attacker's sandbox (its own,
the token for its model, the pass for a git token) and a login cookie of the victim's that a port of
a sandbox has seen are tried at every operation, with the ids of the victim.
"""

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.http.routes import OF_USERS, Scope
from tests.description import Operation, example_body, example_path
from tests.live.scripts import run as commands
from tests.resilience.book import Ground
from tests.resilience.pair import Pair, Side, attacking_pair, not_at_default
from tests.resilience.rows.access import OPERATIONS
from tests.service import Answer

_CANARY: Final = "canary-of-alice"
_NEW_KEY: Final = re.compile(rb'"key":"asvc_')
_CHANGES: Final = frozenset({Scope.RUN, Scope.MANAGE, Scope.ADMIN})
_OF_SERVER: Final = (
    *("/api/keys", "/api/service", "/api/v1/users", "/api/v1/audit-log", "/api/v1/logins"),
)
"""Below which no agent server has anything: what is answered there is this server's answer."""
_NOT_THERE: Final = "/runtime/"
"""What a server has at these paths only if it is configured so."""
_SEEN: Final = {
    "model token": re.compile(rb"asmt_[A-Za-z0-9_-]{43}"),
    "git pass": re.compile(rb'"X-Access-Token": ?"([A-Za-z0-9_-]{80,400})"'),
}
_MAX_BYTES: Final = 1 << 30
_ENVIRONMENT: Final = {
    "AGENTSVC_GIT__CHECK_TOKENS": "false",
    # So many refusals would be answered late, one by one.
    "AGENTSVC_LIMITS__REFUSED_PER_MINUTE": "0",
    "AGENTSVC_SHARING__ENABLED": "true",
    "AGENTSVC_MCP_SERVER__ENABLED": "true",
}


class Found(msgspec.Struct, kw_only=True):
    """What was tried and what got through."""

    tried: int = 0
    kinds: tuple[str, ...] = ()
    problems: list[str] = msgspec.field(default_factory=list)


async def try_keys(ground: Ground) -> Found:
    """Try every key that a sandbox can see."""
    async with attacking_pair(ground.place("default"), _ENVIRONMENT) as pair:
        ids = await _furnish(pair.victim)
        keys = {"session key": pair.attacker.inside.key, **await _keys_inside(pair)}
        found = Found(kinds=tuple(keys))
        found.problems += not_at_default(pair)
        found.problems += [f"no {name} was found inside" for name in _SEEN.keys() - keys.keys()]
        before = await _look(pair.victim)
        for name, key in keys.items():
            await _at_operations(pair, name, key, ids, found)
            await _at_gateway(pair, name, key, found)
        await _of_sandboxes(pair, ids, found)
        await _with_a_cookie(pair, found)
        after = await _look(pair.victim)
        if before != after:
            found.problems.append(f"what is the victim's was changed: {before} to {after}")
    return found


async def _furnish(side: Side) -> dict[str, str]:
    """Give the victim a conversation, a secret and a webhook; return what they are called."""
    client = side.client
    await client.post("/api/v1/secrets", json={"name": "OWN", "value": _CANARY})
    conversation = await client.start_conversation(
        commands(f"echo {_CANARY}"), sandbox_id=side.inside.id, title=_CANARY
    )
    await client.wait_for_execution(conversation, "finished")
    return {
        "conversation_id": conversation,
        "sandbox_id": side.inside.id,
        "session_id": side.inside.id,
        "runtime_id": side.inside.id,
        "secret_name": "OWN",
        "secret_id": "OWN",
        "key_id": "1",
    }


async def _keys_inside(pair: Pair) -> dict[str, str]:
    """Have an agent of the attacker work, and look into its memory as its sandbox can."""
    side = pair.attacker
    tokens = {"provider_tokens": {"gitlab": {"token": "of-mallory", "host": "https://gitlab.com"}}}
    stored = await side.client.post("/api/v1/secrets/git-providers", json=tokens)
    assert stored.status == 200, stored.text
    name = await side.client.start_conversation(commands("true"), sandbox_id=side.inside.id)
    await side.client.wait_for_execution(name, "finished")
    [pid] = pair.server.installation.agent_servers(side.inside.id)
    return await asyncio.to_thread(_in_memory, pid)


def _in_memory(pid: int) -> dict[str, str]:
    found: dict[str, str] = {}
    read = 0
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            area, rights, *_ = line.split()
            if not rights.startswith("rw") or read > _MAX_BYTES:
                continue
            start, end = (int(part, 16) for part in area.split("-"))
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, OverflowError, ValueError):
                continue
            read += len(data)
            for name, pattern in _SEEN.items():
                if name not in found and (match := pattern.search(data)):
                    found[name] = match[match.lastindex or 0].decode()
    return found


async def _look(side: Side) -> list[str]:
    """Return what of the victim's nothing but a request of the victim's changes."""
    paths = (
        "/api/keys",
        "/api/v1/secrets/search",
        "/api/v1/webhook-subscriptions",
        "/api/settings",
    )
    found = [(await side.client.get(path)).text for path in paths]
    [name] = [
        one["title"] for one in (await side.client.get("/api/conversations")).json()["results"]
    ]
    shown = await side.client.sandbox(side.inside.id)
    kept = [re.sub(r'"last_used_at":("[^"]*"|null)', "", text) for text in found]
    return [*kept, name, str((shown or {}).get("status"))]


async def _at_operations(
    pair: Pair, name: str, key: str, ids: dict[str, str], found: Found
) -> None:
    """Try a key of a sandbox at what is for users, with the ids of the victim."""
    client = pair.server.of({"id": "none", "session_api_key": key}).agent
    client.base_url = pair.server.installation.url
    for operation in OPERATIONS:
        if operation.route.scope not in OF_USERS or operation.route.is_stream:
            continue
        for options in example_body(operation, ids):
            path = example_path(operation, ids)
            answer = await client.request(
                operation.method.upper(), path, allow_redirects=False, **options
            )
            found.tried += 1
            if why := _wrong(operation, answer):
                found.problems.append(f"{name} at {operation.name}: {why}")


def _wrong(operation: Operation, answer: Answer) -> str:
    if _CANARY.encode() in answer.body:
        return "it tells what is the victim's"
    if _NEW_KEY.search(answer.body):
        return "it makes a key"
    # Others are paths of agent servers, too: the key opens those of its own.
    is_here = operation.path.startswith(_OF_SERVER)
    return f"it answers {answer.status}" if is_here and answer.status < 400 else ""


async def _at_gateway(pair: Pair, name: str, key: str, found: Found) -> None:
    """Try it at the ports of the victim's sandbox, in each place that a key may stand."""
    base = f"{pair.server.installation.url}/sandboxes/{pair.victim.inside.id}"
    shown: list[dict[str, Any]] = [
        {"headers": {"X-Session-API-Key": key}},
        {"headers": {"Authorization": f"Bearer {key}"}},
        {"params": {"session_api_key": key}},
        {"params": {"tkn": key}},
        {"cookies": {"vscode-tkn": key}},
    ]
    async with aiohttp.ClientSession() as session:
        for tail in ("agent/api/conversations", "agent/server_info", "worker_1/", "vscode/"):
            for options in shown:
                async with session.get(f"{base}/{tail}", allow_redirects=False, **options) as one:
                    found.tried += 1
                    if one.status < 400 or one.status in (502, 504):
                        found.problems.append(f"{name} opens {tail} of the victim: {one.status}")


async def _of_sandboxes(pair: Pair, ids: dict[str, str], found: Found) -> None:
    """Report and ask, with the attacker's sandbox key, for what is of the victim's sandbox."""
    client = pair.server.of({"id": "none", "session_api_key": pair.attacker.inside.key}).agent
    client.base_url = pair.server.installation.url
    for operation in OPERATIONS:
        if operation.route.scope not in (Scope.SANDBOX, Scope.PASS, Scope.MODEL):
            continue
        for options in example_body(operation, {**ids, "id": ids["conversation_id"]}):
            path = example_path(operation, ids)
            answer = await client.request(operation.method.upper(), path, **options)
            found.tried += 1
            if _CANARY.encode() in answer.body or answer.status < 400:
                found.problems.append(f"session key at {operation.name}: {answer.status}")


async def _with_a_cookie(pair: Pair, found: Found) -> None:
    """Use a login cookie of the victim's that a port of a sandbox was sent, and nothing else.

    A program sends what headers it likes, so it says that it is a page of the server's own.
    """
    url = pair.server.installation.url
    login = await pair.victim.client.post(
        "/api/v1/logins", json={"api_key": pair.victim.client.key}
    )
    cookie = login.headers["Set-Cookie"].partition(";")[0]
    said = {"Cookie": cookie, "Origin": url, "Sec-Fetch-Site": "same-origin"}
    async with aiohttp.ClientSession(headers=said) as session:
        for operation in OPERATIONS:
            if operation.route.scope not in OF_USERS or operation.route.is_stream:
                continue
            if operation.route.scope in _CHANGES and operation.path not in (
                "/api/keys",
                "/api/settings",
            ):
                continue
            for options in example_body(operation, {}):
                if "json" in options:
                    options = {"data": msgspec.json.encode(options["json"])} | {  # noqa: PLW2901
                        "headers": {"Content-Type": "application/json"}
                    }
                path = url + example_path(operation, {"key_id": "1"})
                method = operation.method.upper()
                async with session.request(method, path, allow_redirects=False, **options) as one:
                    found.tried += 1
                    if one.status not in (401, 403) and not operation.path.startswith(_NOT_THERE):
                        found.problems.append(f"a cookie alone at {operation.name}: {one.status}")
        try:
            async with session.ws_connect(f"{url}/api/v1/events/stream") as socket:
                first = await socket.receive(timeout=3)
                is_told = first.type is aiohttp.WSMsgType.TEXT
        except (aiohttp.WSServerHandshakeError, TimeoutError):
            is_told = False
        found.tried += 1
        if is_told:
            found.problems.append("a cookie alone opens the stream of events")
