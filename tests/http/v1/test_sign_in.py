"""Sign-in by OpenID Connect and by a proxy: who gets in, and what does not let anybody in."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from joserfc.jwk import RSAKey

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import StartFailed
from agentsvc.base.values import monotonic, now
from agentsvc.cli import cli
from tests.http.v1.issuer import CLIENT, Issuer, running_issuer
from tests.plugin_loading import part
from tests.service import Answer, Client, Service, login_headers
from tests.streams import open_lines

SIGN_IN = "/api/v1/sign-in"
USERS = "/api/v1/users"


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


@pytest.fixture
async def browser(service: Service, issuer: Issuer, client: Client) -> Client:
    """Return a browser of nobody, of a server with a provider that makes users."""
    assert client.key
    await configure(service, issuer)
    return service.client_with(None)


async def configure(
    service: Service, issuer: Issuer, more: dict[str, Any] | None = None, **options: Any
) -> None:
    provider = {"issuer": issuer.url, "client_id": CLIENT, "new_users": True, **options}
    section = {"enabled": True, "providers": {"company": provider}, **(more or {})}
    extensions = {**service.config.extensions, "sign_in": section}
    service.config = msgspec.structs.replace(service.config, extensions=extensions)
    await service.restart()


async def begin(browser: Client, **order: Any) -> dict[str, Any]:
    answer = await browser.post(f"{SIGN_IN}/attempts", json={"provider": "company", **order})
    assert answer.status == 200, answer.text
    begun: dict[str, Any] = answer.json()
    return begun


async def sign_in(browser: Client, issuer: Issuer, **order: Any) -> Answer:
    begun = await begin(browser, **order)
    back = issuer.authorize(begun["url"])
    return await browser.post(SIGN_IN, json={**back, "binding": begun["binding"]})


async def name_of(browser: Client, answer: Answer) -> str:
    current = await browser.get("/api/keys/current", headers=login_headers(answer))
    assert current.status == 200, current.text
    return str(current.json()["user_name"])


async def test_a_user_is_made_at_the_first_sign_in_and_keys_still_work(
    browser: Client, issuer: Issuer, client: Client, service: Service
) -> None:
    providers = (await browser.get("/api/v1/logins/providers")).json()
    assert providers == [{"name": "company", "title": "company"}]
    first = await sign_in(browser, issuer)
    assert await name_of(browser, first) == "ann"
    digest = hashlib.sha256(issuer.forms[-1]["code_verifier"].encode()).digest()
    assert issuer.asked["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert issuer.asked["redirect_uri"] == f"{browser.base_url}/login"
    await service.restart()
    issuer.claims = {"preferred_username": "renamed"}
    assert await name_of(browser, await sign_in(browser, issuer)) == "ann"
    issuer.claims = {"sub": "43", "preferred_username": "  ", "email": "bob@example.com"}
    assert await name_of(browser, await sign_in(browser, issuer)) == "bob@example.com"
    users = {one["name"]: one["role"] for one in (await client.get(USERS)).json()}
    assert users == {"admin": "admin", "ann": "member", "bob@example.com": "member"}
    audit = (await client.get("/api/v1/audit-log")).json()["items"]
    assert "ann" in {one["user_name"] for one in audit if one["action"] == f"POST {SIGN_IN}"}


async def test_without_its_switch_nobody_signs_in(service: Service, client: Client) -> None:
    extensions = {**service.config.extensions, "sign_in": {}}
    service.config = msgspec.structs.replace(service.config, extensions=extensions)
    await service.restart()
    browser = service.client_with(None)
    assert (await browser.get("/api/v1/logins/providers")).json() == []
    assert (await browser.post(SIGN_IN, json={})).status == 404


WRONG: dict[str, Callable[[Issuer], None]] = {
    "another nonce": lambda issuer: issuer.claims.update(nonce="another"),
    "no nonce": lambda issuer: issuer.claims.update(nonce=None),
    "no algorithm": lambda issuer: issuer.header.update(alg="none"),
    "the public key as a shared one": lambda issuer: issuer.header.update(alg="HS256"),
    "another issuer": lambda issuer: issuer.claims.update(iss="https://evil.example"),
    "another audience": lambda issuer: issuer.claims.update(aud="another"),
    "two audiences": lambda issuer: issuer.claims.update(aud=[CLIENT, "another"]),
    "another party": lambda issuer: issuer.claims.update(azp="another"),
    "expired": lambda issuer: issuer.claims.update(exp=1_000_000),
    "no end": lambda issuer: issuer.claims.update(exp=None),
    "an odd end": lambda issuer: issuer.claims.update(exp={"a": 1}),
    "not valid yet": lambda issuer: issuer.claims.update(nbf=9_999_999_999),
    "nobody": lambda issuer: issuer.claims.update(sub=None),
    "a number for a name": lambda issuer: issuer.claims.update(sub=42),
    "an unknown key": lambda issuer: issuer.header.update(kid="nobody's"),
    "an odd key": lambda issuer: issuer.header.update(kid="odd"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_token_that_is_not_good_lets_nobody_in(
    browser: Client, issuer: Issuer, client: Client, wrong: str
) -> None:
    WRONG[wrong](issuer)
    answer = await sign_in(browser, issuer)
    assert (answer.status, "Set-Cookie" in answer.headers) == (401, False), answer.text
    assert len((await client.get(USERS)).json()) == 1


async def test_clocks_may_be_a_little_off(browser: Client, issuer: Issuer) -> None:
    issuer.claims = {"exp": round(now().timestamp()) - 30}
    assert (await sign_in(browser, issuer)).status == 201


async def test_a_key_that_has_changed_is_fetched_once(browser: Client, issuer: Issuer) -> None:
    assert (await sign_in(browser, issuer)).status == 201
    assert (await sign_in(browser, issuer)).status == 201
    assert issuer.key_fetches == 1
    issuer.key = RSAKey.generate_key(2048, {"kid": "two"})
    issuer.published = [issuer.key]
    end = monotonic() + 30
    # One fetch a second at most, whoever sends what.
    while (await sign_in(browser, issuer)).status != 201:
        assert monotonic() < end
        await asyncio.sleep(0.2)
    assert issuer.key_fetches == 2


async def test_a_key_without_a_name_may_change_too(
    browser: Client, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part("sign_in.provider"), "_KEYS_AGAIN_SECONDS", 0)
    issuer.header = {"kid": None}
    for _ in range(2):
        issuer.key = RSAKey.generate_key(2048)
        issuer.published = [issuer.key]
        assert (await sign_in(browser, issuer)).status == 201
    assert issuer.key_fetches == 2


async def test_those_who_wait_for_a_provider_that_hangs_wait_once(
    browser: Client, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setattr(part("sign_in.provider"), "_SECONDS", 0.5)
    await service.restart()
    issuer.hangs = True
    begun = monotonic()
    order = {"provider": "company"}
    tries = [browser.post(f"{SIGN_IN}/attempts", json=order) for _ in range(8)]
    assert {answer.status for answer in await asyncio.gather(*tries)} == {502}
    assert monotonic() - begun < 2
    issuer.hangs = False
    end = monotonic() + 15
    while (await sign_in(browser, issuer)).status != 201:
        assert monotonic() < end
        await asyncio.sleep(0.2)


async def test_a_sign_in_belongs_to_the_page_that_began_it_and_counts_once(
    browser: Client, issuer: Issuer
) -> None:
    mine, other = await begin(browser), await begin(browser)
    back = issuer.authorize(mine["url"])
    # An address that somebody else had made, opened here: nobody is logged in as somebody else.
    for binding in (other["binding"], "guess"):
        assert (await browser.post(SIGN_IN, json={**back, "binding": binding})).status == 401
    order = {**back, "binding": mine["binding"]}
    foreign = {"Origin": "https://evil.example"}
    assert (await browser.post(SIGN_IN, json=order, headers=foreign)).status == 403
    attempt = f"{SIGN_IN}/attempts"
    given = {"provider": "company"}
    assert (await browser.post(attempt, json=given, headers=foreign)).status == 403
    assert (await browser.post(SIGN_IN, json=order)).status == 201
    assert (await browser.post(SIGN_IN, json=order)).status == 401
    assert len(issuer.forms) == 1
    for changed in ({"iss": "https://evil.example"}, {"code": "wrong"}):
        begun = await begin(browser)
        back = {**issuer.authorize(begun["url"]), **changed}
        answer = await browser.post(SIGN_IN, json={**back, "binding": begun["binding"]})
        assert answer.status == 401, changed


async def test_a_browser_is_sent_to_the_provider_and_back_to_this_server_only(
    browser: Client, issuer: Issuer
) -> None:
    for order in ({"redirect_uri": "https://evil.example"}, {"next": "//evil.example"}):
        begun = await begin(browser, **order)
        back = issuer.authorize(begun["url"])
        assert issuer.asked["redirect_uri"] == f"{browser.base_url}/login"
        assert "evil" not in begun["url"] + str(back)
    assert (await browser.post(f"{SIGN_IN}/attempts", json={"provider": "other"})).status == 404


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"token_endpoint": 7},
    ],
)
async def test_a_provider_that_says_odd_things_is_not_used(
    browser: Client, issuer: Issuer, metadata: dict[str, Any]
) -> None:
    issuer.metadata = metadata
    answer = await browser.post(f"{SIGN_IN}/attempts", json={"provider": "company"})
    assert (answer.status, answer.json()["code"]) == (502, "sign_in_unavailable")


async def test_roles_follow_the_groups_of_the_provider(
    browser: Client, issuer: Issuer, service: Service, client: Client
) -> None:
    await configure(service, issuer, roles={"ops": "admin", "staff": "viewer"}, default_role="none")

    async def role_with(groups: Any) -> tuple[int, str]:
        issuer.claims["groups"] = groups
        status = (await sign_in(browser, issuer)).status
        users = {one["name"]: one["role"] for one in (await client.get(USERS)).json()}
        return status, users.get("ann", "")

    assert await role_with(["others"]) == (403, "")
    assert await role_with({"ops": 1}) == (403, "")
    assert await role_with(["staff", 7]) == (201, "viewer")
    assert await role_with(["staff", "ops"]) == (201, "admin")
    assert await role_with("staff") == (201, "viewer")
    assert await role_with(None) == (403, "viewer")


async def test_an_invitation_makes_an_account_a_user_that_there_is(
    browser: Client, issuer: Issuer, service: Service, client: Client
) -> None:
    # A name alone takes over nobody.
    boss = await service.make_client("ann", Role.MEMBER)
    assert (await sign_in(browser, issuer)).status == 409
    await configure(service, issuer, new_users=False)
    issuer.claims = {"preferred_username": "ann@company"}
    assert (await sign_in(browser, issuer)).status == 403
    order = {"user_name": "ann"}
    assert (await boss.post(f"{SIGN_IN}/invitations", json=order)).status == 403
    assert (await client.post(f"{SIGN_IN}/invitations", json={"user_name": "x"})).status == 404
    made = await client.post(f"{SIGN_IN}/invitations", json=order)
    where, _, invitation = made.json()["url"].partition("?invitation=")
    assert (made.status, where) == (201, f"{browser.base_url}/login")
    assert (await sign_in(browser, issuer, invitation="wrong")).status == 401
    signed_in = await sign_in(browser, issuer, invitation=invitation)
    assert await name_of(browser, signed_in) == "ann"
    assert await name_of(browser, await sign_in(browser, issuer)) == "ann"
    issuer.claims = {"sub": "somebody else"}
    assert (await sign_in(browser, issuer, invitation=invitation)).status == 401
    issuer.claims = {}
    environment = {"AGENTSVC_URL": service.url, "AGENTSVC_API_KEY": client.key}
    invite = partial(CliRunner(env=environment).invoke, cli, ["sign-in", "invite", "admin"])
    invitation = (await asyncio.to_thread(invite)).stdout.strip().rpartition("=")[2]
    assert (await sign_in(browser, issuer, invitation=invitation)).status == 409
    [mine] = [one for one in (await client.get(USERS)).json() if one["name"] == "ann"]
    await client.patch(f"{USERS}/{mine['id']}", json={"is_blocked": True})
    assert (await sign_in(browser, issuer)).status == 403
    for file in service.data_dir.glob("*.db*"):
        assert invitation.encode() not in file.read_bytes()


async def test_a_key_that_was_revoked_ends_the_logins_and_is_replaced(
    browser: Client, issuer: Issuer, client: Client
) -> None:
    first = login_headers(await sign_in(browser, issuer))
    [key] = (await browser.get("/api/keys", headers=first)).json()
    assert key["name"] == "sign-in by company"
    [ann] = [one for one in (await client.get(USERS)).json() if one["name"] == "ann"]
    assert (await client.delete(f"{USERS}/{ann['id']}/keys/{key['id']}")).status == 200
    assert (await browser.get("/api/keys", headers=first)).status == 401
    assert await name_of(browser, await sign_in(browser, issuer)) == "ann"


async def log_out(browser: Client, token: str) -> int:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    data = f"logout_token={token}"
    return (await browser.post(f"{SIGN_IN}/company/logout", data=data, headers=form)).status


async def test_a_provider_ends_logins_by_the_back_channel(
    browser: Client, issuer: Issuer, service: Service
) -> None:
    one = login_headers(await sign_in(browser, issuer))
    issuer.claims = {"sid": "session-2"}
    two = login_headers(await sign_in(browser, issuer))
    issuer.claims = {"sub": "43", "preferred_username": "bob"}
    bob = login_headers(await sign_in(browser, issuer))

    async def good() -> list[int]:
        return [(await browser.get("/api/keys", headers=one)).status for one in (one, two, bob)]

    wrongs: list[dict[str, Any]] = [
        {"aud": "another"},
        {"iss": "https://evil.example"},
        {"iat": 1_000_000},
        {"exp": 1_000_000},
        {"events": {}},
        {"events": None},
        {"jti": None},
        {"nonce": "of an ID token"},
        {"sub": None},
    ]
    for wrong in wrongs:
        assert await log_out(browser, issuer.logout_token(**wrong)) == 401, wrong
    assert await log_out(browser, issuer.id_token()) == 401
    assert await log_out(browser, "a.b.c") == 401
    assert await good() == [200, 200, 200]
    browser.headers = one
    async with open_lines(browser, "/api/v1/events/stream") as stream:
        await stream.until("ready")
        token = issuer.logout_token(sid="session-1")
        assert await log_out(browser, token) == 200
        assert (await stream.rest())[-1].data == {"reason": "not_authenticated"}
    assert await good() == [401, 200, 200]
    assert await log_out(browser, token) == 401
    assert await log_out(browser, issuer.logout_token()) == 200
    assert await good() == [401, 401, 200]


async def test_a_login_that_ends_meanwhile_keeps_no_other_open(
    browser: Client, issuer: Issuer
) -> None:
    logins = [login_headers(await sign_in(browser, issuer)) for _ in range(6)]
    own = {**logins[3], "Origin": browser.base_url}
    ended, _ = await asyncio.gather(
        log_out(browser, issuer.logout_token(sid=None)),
        browser.delete("/api/v1/logins/current", headers=own),
    )
    left = [(await browser.get("/api/keys", headers=one)).status for one in logins]
    assert (ended, left) == (200, [401] * 6)


async def test_a_header_counts_only_from_a_trusted_proxy(
    browser: Client, issuer: Issuer, service: Service
) -> None:
    proxy = {"user_header": "X-User", "groups_header": "X-Groups", "new_users": True}
    more = {"proxy": {**proxy, "roles": {"ops": "admin"}, "title": "The company"}}
    said = {"X-User": "carl", "X-Groups": "a, ops"}
    path = f"{SIGN_IN}/proxy"
    assert (await browser.post(path, json={}, headers=said)).status == 404
    await configure(service, issuer, more)
    assert (await browser.post(path, json={}, headers=said)).status == 401
    server = msgspec.structs.replace(service.config.server, trusted_proxies=("127.0.0.1",))
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    shown = (await browser.get("/api/v1/logins/providers")).json()
    assert shown[-1] == {"name": "", "title": "The company"}
    answer = await browser.post(path, json={}, headers=said)
    current = await browser.get("/api/keys/current", headers=login_headers(answer))
    assert (current.json()["user_name"], current.json()["role"]) == ("carl", "admin")
    for headers in ({}, {"X-User": " "}, {**said, "Origin": "https://evil.example"}):
        assert (await browser.post(path, json={}, headers=headers)).status in (401, 403)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"X-User: carl\r\nX-Groups: ops", b"201"),
        ("X-User: José Núñez\r\nX-Groups: ops".encode(), b"201"),
        (b"X-User: " + 255 * b"u", b"201"),
        (b"X-User: " + 256 * b"u", b"401"),
        (b"X-User: carl\r\nX-User: boss", b"401"),
        # A proxy that adds a line leaves the one of the client before it.
        (b"X-User: carl\r\nX-Groups: ops\r\nX-Groups: ", b"401"),
        (b"X-User: Jos\xe9", b"401"),
    ],
)
async def test_a_proxy_says_once_and_in_full_who_somebody_is(
    browser: Client, issuer: Issuer, service: Service, lines: bytes, status: bytes
) -> None:
    proxy = {"user_header": "X-User", "groups_header": "X-Groups", "new_users": True}
    server = msgspec.structs.replace(service.config.server, trusted_proxies=("127.0.0.1",))
    service.config = msgspec.structs.replace(service.config, server=server)
    await configure(service, issuer, {"proxy": {**proxy, "roles": {"ops": "admin"}}})
    reader, writer = await asyncio.open_connection(*browser.base_url[7:].split(":"))
    head = f"POST {SIGN_IN}/proxy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    body = b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    writer.write(head + lines + b"\r\n" + body)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 " + status), answer


async def test_a_secret_shows_the_provider_which_client_asks(
    browser: Client, issuer: Issuer, service: Service, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3:cret\n")
    await configure(service, issuer, client_secret_file=str(secret))
    assert (await sign_in(browser, issuer)).status == 201
    expected = base64.b64encode(b"agentsvc:s3%3Acret").decode()
    assert issuer.authorizations[-1] == f"Basic {expected}"
    issuer.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    await service.restart()
    assert (await sign_in(browser, issuer)).status == 201
    assert "s3:cret" in issuer.forms[-1].values()


async def test_settings_that_are_not_safe_stop_the_start(
    service: Service, issuer: Issuer, client: Client
) -> None:
    with pytest.raises(StartFailed, match="client_secret_file"):
        await configure(service, issuer, client_secret_file=str(service.data_dir / "none"))
    issuer.url = "http://192.0.2.1"
    with pytest.raises(StartFailed, match="issuer"):
        await configure(service, issuer)


def test_old_attempts_make_room_for_new_ones() -> None:
    clock = [0.0]
    attempts = part("sign_in.attempts").Attempts(lambda: clock[0])
    state, binding, _ = attempts.begin("company", redirect_uri="", invitation=None)
    clock[0] = 601.0
    with pytest.raises(Exception, match="start again"):
        attempts.redeem(state, binding)
