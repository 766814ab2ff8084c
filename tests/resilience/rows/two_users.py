"""One user never sees another's: every operation that names a thing, with the things of somebody else.

The answer has to be the one that a made-up name gets, and 404; what is another's stays as it is.
"""

import re
from itertools import zip_longest
from typing import Final

from agentsvc.base.values import new_id
from agentsvc.http.routes import OF_USERS
from tests.description import Operation, example_body, example_path
from tests.http.gateway.steps import until
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.rows.access import OPERATIONS
from tests.resilience.rows.keys_inside import try_keys
from tests.resilience.server import Server, serving
from tests.service import Answer, Client

_MARK: Final = "canary-of-the-owner"
_USERS: Final = 6
_BY_NAME: Final = frozenset({"name", "secret_name", "repository_name"})
"""Names that each user has of their own: the same one is another thing for another user."""
_PUBLIC: Final = frozenset({"user_id"})
"""What only administrators ask for; what they see of a user is not that user's own."""
_NOTHING: Final = (b"null", b"false", b"[]", b"[null]", b"0", b'{"items":[],"next_page_id":null}')
"""What is answered of what is not there, where that is no 404: lists, counts and looks of several."""
_NEVER_404: Final = frozenset(
    {
        # Older clients count on these: what cannot be had is empty, what does not run is stopped.
        "get /api/v1/app-conversations/{conversation_id}/file",
        "post /api/conversations/{conversation_id}/stop",
    }
)
"""Operations that answer the same of whatever is not there."""
_ANSWERED: Final = "it is answered as if it were there, and so is a made-up name"
_OF_REQUEST: Final = re.compile(r'"request_id":"[0-9a-f]*"')
_ID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class Things:
    """What a user has, by what operations call it."""

    def __init__(self, ids: dict[str, str]) -> None:
        self.ids = ids

    @classmethod
    async def make(cls, client: Client, receiver: str) -> "Things":
        await client.save_settings()
        conversation = await client.start_conversation(_MARK, title=_MARK)
        await client.patch(f"/api/v1/app-conversations/{conversation}", json={"title": _MARK})
        found = await client.conversation(conversation)
        older = (await client.post("/api/conversations", json={"initial_user_msg": _MARK})).json()
        hook = {"url": receiver, "description": _MARK}
        subscription = (await client.post("/api/v1/webhook-subscriptions", json=hook)).json()
        key = (await client.post("/api/keys", json={"name": _MARK})).json()
        order = {"name": _MARK, "prompt": _MARK, "trigger": {"type": "webhook"}}
        automation = (await client.post("/api/automation/v1", json=order)).json()
        task = {"message": _MARK, "count": 2}
        attempts = (await client.post("/api/v1/attempts", json=task)).json()
        archive = await client.post(f"/api/v1/app-conversations/{conversation}/archives")
        await client.post("/api/v1/secrets", json={"name": "OWN", "value": _MARK})
        return cls(
            {
                "conversation_id": conversation,
                "older_id": older["conversation_id"],
                "sandbox_id": found["sandbox_id"],
                "session_id": found["sandbox_id"],
                "runtime_id": found["sandbox_id"],
                "subscription_id": subscription["id"],
                "key_id": str(key["id"]),
                "archive_id": archive.json()["id"],
                "automation_id": automation["id"],
                "run_id": new_id(),
                # Its backend keeps no layers.
                "environment_id": new_id(),
                "attempts_id": attempts["id"],
                "message_id": new_id(),
                "delivery_id": "1",
                "login_id": new_id(),
                "secret_id": "OWN",
            }
        )

    async def look(self, client: Client) -> list[str]:
        """Return what their owner sees of them that nothing but a request changes."""
        paths = (
            "/api/v1/app-conversations/search",
            "/api/v1/sandboxes/search",
            "/api/v1/webhook-subscriptions",
            "/api/automation/v1",
            "/api/v1/secrets/search",
            "/api/v1/archives",
            "/api/keys",
            "/api/conversations",
        )
        seen = [(await client.get(path)).text for path in paths]
        kept = r'"(?:id|conversation_id|title|name|url|status|sandbox_status|is_enabled)": ?"[^"]*"'
        return [found for text in seen for found in re.findall(kept, text)]


def named(operation: Operation) -> list[str]:
    """Return what in an operation's path, or its query, names a thing."""
    inside = re.findall(r"\{(\w+)\}", operation.path)
    asked = [one["name"] for one in operation.parameters if one["in"] == "query"]
    ids = [name for name in asked if name in ("ids", "id", "sandbox_id", "conversation_id")]
    found = [name for name in inside if name not in _BY_NAME | _PUBLIC]
    return found or [f"?{name}" for name in ids]


class Intruder:
    """Another user, who knows every name there is."""

    def __init__(self, client: Client, things: Things) -> None:
        self._client = client
        self._things = things
        self.tried = 0
        self.leaks: list[str] = []

    async def try_all(self, operation: Operation) -> None:
        for older in (False, True):
            ids = dict(self._things.ids)
            if older:
                ids["conversation_id"] = ids["older_id"]
            theirs = await self._ask(operation, ids)
            made_up = {name: _like(value) for name, value in ids.items()}
            nobodys = await self._ask(operation, made_up)
            for mine, nothing in zip(theirs, nobodys, strict=True):
                self.tried += 1
                problem = _difference(mine, nothing, ids, made_up)
                if problem and not (problem == _ANSWERED and operation.name in _NEVER_404):
                    self.leaks.append(f"{operation.name}: {problem}")

    async def _ask(self, operation: Operation, ids: dict[str, str]) -> list[Answer]:
        path = example_path(operation, ids)
        for name in named(operation):
            if name.startswith("?"):
                value = ids["sandbox_id" if "sandbox" in operation.path else "conversation_id"]
                path = f"{path.partition('?')[0]}?{name[1:]}={value}"
        return [
            await self._client.request(
                operation.method.upper(), path, allow_redirects=False, **options
            )
            for options in example_body(
                operation, {**ids, "parent_conversation_id": ids["conversation_id"]}
            )
        ]


def _like(text: str) -> str:
    """Return a name like another, of nothing."""
    if text.isdigit():
        return "987654"
    return new_id() if "-" not in text else f"{new_id()[:8]}{text[8:]}"


def _difference(mine: Answer, nothing: Answer, ids: dict[str, str], made_up: dict[str, str]) -> str:
    if _MARK in mine.text:
        return f"it tells what is another's: {mine.text[:200]}"
    if mine.status != nothing.status or _bare(mine, ids) != _bare(nothing, made_up):
        return (
            f"{mine.status} {mine.text[:200]} and of nothing {nothing.status} {nothing.text[:200]}"
        )
    is_refused = mine.status in (404, 422, 400, 409, 410)
    return "" if is_refused or mine.body in _NOTHING else _ANSWERED


def _bare(answer: Answer, ids: dict[str, str]) -> str:
    text = _ID.sub("ID", _OF_REQUEST.sub("", answer.text))
    return re.sub(rf"\b{re.escape(ids['secret_id'])}\b", "ID", text)


async def run(ground: Ground) -> Outcome:
    operations = [one for one in OPERATIONS if one.route.scope in OF_USERS and named(one)]
    if ground.scale < 1:
        operations = ground.chance.sample(operations, ground.count(len(operations), least=20))
    leaks: list[str] = []
    tried = 0
    async with serving(ground.place("server")) as server:
        owner = await server.add_user("owner")
        things = await Things.make(owner, "https://receiver.invalid/hook")
        await owner.wait_for_execution(things.ids["conversation_id"], "finished")
        await owner.wait_for_sandbox(things.ids["sandbox_id"], "RUNNING")

        async def is_saved() -> bool:
            archive = await owner.get(f"/api/v1/archives/{things.ids['archive_id']}")
            return archive.status == 200 and archive.json()["state"] != "saving"

        async def runs_in_v0() -> bool:
            found = (await owner.get(f"/api/conversations/{things.ids['older_id']}")).json()
            has_title = not found["title"].startswith("Conversation ")
            return found["status"] == "RUNNING" and has_title

        async def is_attempted() -> bool:
            found = (await owner.get(f"/api/v1/attempts/{things.ids['attempts_id']}")).json()
            if found["completed_at"] is None:
                return False
            # Their sandboxes are paused a moment later.
            ids = [one["conversation_id"] for one in found["attempts"]]
            seen = [await owner.conversation(one) for one in ids]
            return {one["sandbox_status"] for one in seen} == {"PAUSED"}

        await until(is_attempted)
        await until(is_saved)
        await until(runs_in_v0)
        before = await things.look(owner)
        for role in ("member", "admin"):
            intruder = await _intruder(server, role, things)
            for operation in operations:
                if not operation.path.startswith(("/api/v1/users", "/api/service/users")):
                    await intruder.try_all(operation)
            leaks += intruder.leaks
            tried += intruder.tried
        after = await things.look(owner)
    changed = [
        f"{was} became {is_now}" for was, is_now in zip_longest(before, after) if was != is_now
    ]
    inside = await try_keys(ground)
    return Outcome(
        did=(
            f"{len(operations)} operations with an id, by another member and an administrator,"
            " with the ids of an owner and with made-up ones; at the defaults with real sandboxes,"
            f" {inside.tried} requests with what one of them can see ({', '.join(inside.kinds)}) and"
            " with a stolen login cookie"
        ),
        figures=(
            Figure(what="attempts", value=tried, at_least=len(operations)),
            zero("leaks, or answers unlike those of what is not there", leaks),
            zero("changes of what is another's", changed),
            Figure(what="requests with keys seen inside", value=inside.tried, at_least=100),
            zero("that such a key, or a cookie alone, opened", inside.problems),
        ),
        problems=tuple(leaks + changed + inside.problems),
    )


async def _intruder(server: Server, role: str, things: Things) -> Intruder:
    client = await server.add_user(f"intruder-{role}", role=role)
    await client.save_settings()
    return Intruder(client, things)


ROW: Final = Row(name="users", half=Half.IN, promise="one user never sees another's", run=run)
