"""Automations that act as a GitHub App, at a server that checks the App's signatures as GitHub does."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from joserfc.jwk import RSAKey

from agentsvc.config.data_directory import DataDirectory
from agentsvc.storage.installation import change_master_key
from tests.committing_agent import CommittingAgent
from tests.github_app_host import APP, HOOK, SLUG, AppHost
from tests.http.v1.test_issues_to_pulls import BASE, Loop, fake_agent, make_loop
from tests.service import Answer, Client, Service

__all__ = ["fake_agent"]

PATH = f"{BASE}/github-app"
type Json = dict[str, Any]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[AppHost]:
    async with AppHost(tmp_path / "git") as host:
        yield host
        assert host.unexpected == []


async def store(client: Client, host: AppHost, **changes: Any) -> Answer:
    body = {"app_id": APP, "private_key": host.private_key, "webhook_secret": HOOK}
    return await client.put(PATH, json={**body, "host": host.url, **changes})


async def refuse(client: Client, host: AppHost, changes: Json) -> Json:
    """Store an App with something in it that cannot be, and return what is said of that."""
    body = {"app_id": APP, "private_key": host.private_key, "host": host.url, **changes}
    answer = await client.put(PATH, json=body)
    assert (await client.get(PATH)).status == 404
    return {"status": answer.status, **answer.json()}


async def open_loop(client: Client, host: AppHost, **trigger: Any) -> Loop:
    """Store the App, and an automation whose deliveries are those of the App."""
    await client.save_settings()
    answer = await store(client, host)
    assert answer.status == 200, answer.text
    loop = await make_loop(client, host, **{"mention": f"{SLUG}[bot]", **trigger})
    loop.made = {**loop.made, "events_path": answer.json()["events_path"], "secret": HOOK}
    return loop


async def test_an_issue_becomes_a_pull_request_of_the_app_and_its_tokens_stay_in_the_server(
    client: Client, host: AppHost, fake_agent: CommittingAgent, service: Service
) -> None:
    loop = await open_loop(client, host)
    fake_agent.files = {"fix.txt": "1"}
    assert (await loop.begin()).json()["matched"] == 1
    await loop.wait("COMPLETED")
    [branch] = set(await host.branches()) - {"main"}
    assert await host.file(branch, "fix.txt") == "1"
    assert len(host.pulls) == 1
    assert "has opened" in host.own_comments()[0]
    # One token, for this repository and no other.
    assert (host.refused, host.asked_for) == ([], [{"repositories": ["demo"]}])

    [sandbox] = fake_agent.sandboxes.values()
    [conversation] = sandbox.conversations.values()
    seen = f"{sandbox.commands}{sandbox.files}{conversation.body}"
    shown = (await client.get(PATH)).text + (await client.get("/api/v1/settings")).text
    stored = await asyncio.to_thread(Path(service.data_dir, "agentsvc.db").read_bytes)
    for secret in (host.tokens[0], HOOK, host.private_key.splitlines()[1]):
        assert secret not in seen + shown
        assert secret.encode() not in stored
    # Nor has an ordinary conversation one.
    await client.start_conversation()
    bodies = [
        one.body for box in fake_agent.sandboxes.values() for one in box.conversations.values()
    ]
    assert "ghs_" not in str(bodies)
    assert "GITHUB_TOKEN" not in str(bodies)


async def test_deliveries_of_the_app_start_what_is_meant_and_nothing_that_is_forged(
    client: Client, host: AppHost, service: Service
) -> None:
    loop = await open_loop(client, host, label=None)
    other = service.client_with(await _key_of(client, "ann"))
    theirs = await make_loop(other, host, mention=SLUG)
    said = host.say(f"@{SLUG}[bot] please", "eve")
    for secret in ("other", loop.made["id"], ""):
        headers, body = host.delivery("said", secret or "x", comment=said)
        answer = await client.post(loop.made["events_path"], data=body, headers=headers)
        assert answer.status == 401
    assert await loop.runs() == []
    for expected in (1, 0):
        answer = await loop.deliver("said", comment=said)
        assert (answer.json()["matched"], len(answer.json()["runs_created"])) == (1, expected)
    await loop.wait("SKIPPED")
    # The App of one user is nothing for another one's automations.
    assert await theirs.runs() == []
    headers, body = host.delivery("closed", HOOK)
    for event in ("pull_request", "installation"):
        named = {**headers, "X-GitHub-Event": event}
        answer = await client.post(loop.made["events_path"], data=body, headers=named)
        assert answer.json() == {"received": True, "matched": 0, "runs_created": []}


async def _key_of(client: Client, name: str) -> str:
    user = (await client.post("/api/v1/users", json={"name": name})).json()
    made = await client.post(f"/api/v1/users/{user['id']}/keys", json={})
    return str(made.json()["key"])


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_repository_of_the_app_that_was_renamed_is_followed(
    client: Client, host: AppHost, fake_agent: CommittingAgent, *, is_told: bool
) -> None:
    loop = await open_loop(client, host)
    fake_agent.files = {"fix.txt": "1"}
    host.trouble = "renamed"
    if is_told:
        # A delivery names the repository as it is called now.
        host.name = "octo/renamed"
        change = {"repository": {"name": {"from": "demo"}}}
        body = {"action": "renamed", "changes": change, "repository": {"full_name": host.name}}
        await loop.deliver("said", comment=host.say("nothing", "ada"))
        await loop.deliver("told", event="repository", body=body)
    await loop.begin()
    await loop.wait("COMPLETED")
    assert len(host.pulls) == 1
    found = (await client.get(f"{BASE}/{loop.made['id']}")).json()
    assert found["repos"][0]["url"] == "octo/renamed"
    first = {"repositories": ["renamed"]} if is_told else {"repository_ids": [42]}
    assert host.asked_for[0] == first


async def test_a_token_that_is_refused_before_its_time_is_replaced(
    client: Client, host: AppHost, fake_agent: CommittingAgent
) -> None:
    loop = await open_loop(client, host)
    fake_agent.files = {"fix.txt": "1"}
    await loop.deliver("said", comment=host.say(f"@{SLUG} hello", "eve"))
    await loop.wait("SKIPPED")
    host.revoke_tokens()
    await loop.begin()
    await loop.wait("COMPLETED", "SKIPPED")
    assert (len(host.pulls), len(host.asked_for)) == (1, 2)


async def test_a_token_that_is_about_to_end_is_not_used_again(
    client: Client, host: AppHost, fake_agent: CommittingAgent
) -> None:
    host.lifetime = timedelta(seconds=301)
    loop = await open_loop(client, host)
    fake_agent.files = {"fix.txt": "1"}
    await loop.begin()
    await loop.wait("COMPLETED")
    await asyncio.sleep(1.1)
    await loop.deliver("said", comment=host.say(f"@{SLUG} hello", "eve"))
    await loop.wait("SKIPPED", "COMPLETED")
    assert len(host.asked_for) >= 2


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("not installed", f"The GitHub App `{SLUG}` is not installed for `octo/demo`"),
        ("suspended", f"The installation of the GitHub App `{SLUG}` for `octo` is suspended"),
        ("key deleted", f"GitHub rejects the key of the GitHub App `{SLUG}`"),
    ],
)
async def test_an_app_that_may_not_work_fails_the_run_and_says_why(
    client: Client, host: AppHost, trouble: str, why: str
) -> None:
    loop = await open_loop(client, host)
    match trouble:
        case "not installed":
            host.installation = None
        case "suspended":
            host.installation = {"id": 77, "suspended_at": "2026-01-01T00:00:00Z"}
        case _:
            host.keys = [RSAKey.generate_key(2048)]
    await loop.begin()
    [run] = await loop.wait("FAILED")
    assert run["error_detail"].startswith(why)
    # Once that is put right, it goes on.
    host.installation = {"id": 77, "suspended_at": None}
    assert (await store(client, host)).status == 200
    await loop.deliver("said", comment=host.say(f"@{SLUG} hello", "eve"))
    await loop.wait("SKIPPED", "FAILED")


async def test_an_installation_that_is_revoked_under_way_fails_what_needs_it(
    client: Client, host: AppHost
) -> None:
    loop = await open_loop(client, host)
    await loop.deliver("said", comment=host.say(f"@{SLUG} hello", "eve"))
    await loop.wait("SKIPPED")
    host.installation = None
    host.revoke_tokens()
    await loop.deliver("said", comment=host.say(f"@{SLUG} again", "ada"))
    [run, _] = await loop.wait("FAILED", "SKIPPED")
    assert "is not installed" in run["error_detail"]


async def test_a_key_is_replaced_and_a_bad_one_takes_the_place_of_none(
    client: Client, host: AppHost, service: Service
) -> None:
    assert (await client.get(PATH)).status == 404
    first = (await store(client, host)).json()
    former = host.private_key
    host.keys.append(RSAKey.generate_key(2048))
    second = (await store(client, host, webhook_secret="")).json()
    assert (second["events_path"], second["slug"]) == (first["events_path"], SLUG)
    assert second["has_webhook_secret"]
    host.keys.pop(0)
    answer = await store(client, host, private_key=former)
    assert (answer.status, answer.json()["detail"]) == (
        401,
        f"GitHub knows no App `{APP}` with this key",
    )
    assert (await store(client, host, app_id="4712")).status == 401
    # The stored key is still the good one, also under another master key.
    await service.stop()
    await change_master_key(DataDirectory(path=service.data_dir))
    await service.start()
    assert (await store(client, host, private_key="")).status == 200
    assert (await client.delete(PATH)).status == 200
    assert [(await client.delete(PATH)).status, (await client.get(PATH)).status] == [404, 404]
    assert (await client.post(first["events_path"], json={})).status == 404


def _pem(key: Any, *, password: bytes = b"") -> str:
    sealed = BestAvailableEncryption(password) if password else NoEncryption()
    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed).decode())


@pytest.mark.parametrize("kind", ["none", "text", "short", "curve", "sealed", "public", "odd"])
async def test_what_is_no_private_key_of_an_app_is_refused(
    client: Client, host: AppHost, kind: str
) -> None:
    good = RSAKey.generate_key(2048)
    text = {
        "none": "",
        "text": "no key",
        "short": _pem(rsa.generate_private_key(65537, 1024)),  # noqa: S505  # it is to be refused
        "curve": _pem(generate_private_key(SECP256R1())),
        "sealed": _pem(good.private_key, password=b"secret"),
        "public": good.as_pem(private=False).decode(),
        "odd": "-----BEGIN RSA PRIVATE KEY-----\n\0\ud7ff\n-----END RSA PRIVATE KEY-----",
    }[kind]
    told = await refuse(client, host, {"private_key": text})
    assert (told["status"], told["detail"][0]["loc"]) == (422, ["body", "private_key"])
    assert host.requests == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"host": "https://user:pass@example.com"}, 422),
        ({"host": "https://127.0.0.1:9"}, 502),
        ({"app_id": "a b"}, 422),
        ({"private_key": "x" * 4001}, 422),
    ],
)
async def test_a_place_or_a_name_that_cannot_be_is_refused(
    client: Client, host: AppHost, changes: Json, status: int
) -> None:
    assert (await refuse(client, host, changes))["status"] == status
