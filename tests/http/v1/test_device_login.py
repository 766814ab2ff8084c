"""The login of programs that have no browser, through the socket."""

import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.device_logins import (
    BEGINNINGS_A_MINUTE,
    QUESTIONS_A_MINUTE,
    DeviceLogin,
    DeviceLogins,
)
from agentsvc.config.data_directory import DataDirectory
from agentsvc.storage.database import Database
from tests.service import Answer, Client, Service

TOKEN = "/oauth/device/token"  # noqa: S105  # a path
DECISION = "/oauth/device/verify-authenticated"
PAGE = "/oauth/device/verify"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def program(service: Service) -> Client:
    """Return the program that wants to be let in."""
    return await service.make_client(None)


async def begin(program: Client) -> dict[str, Any]:
    answer = await program.post("/oauth/device/authorize", json={})
    assert answer.status == 200, answer.text
    login: dict[str, Any] = answer.json()
    return login


async def ask(program: Client, device_code: str) -> Answer:
    return await program.post(TOKEN, data={"device_code": device_code})


async def expired_login(service: Service) -> DeviceLogin:
    database = await Database.open(DataDirectory(path=service.data_dir).database)
    try:
        return await DeviceLogins(database, lifetime=timedelta(0)).begin()
    finally:
        await database.close()


async def test_a_login_tells_the_program_what_to_show_and_how_to_ask(
    program: Client, service: Service
) -> None:
    login = await begin(program)
    assert set(login) == {
        "device_code",
        "user_code",
        "verification_uri",
        "verification_uri_complete",
        "expires_in",
        "interval",
    }
    assert login["verification_uri"] == f"{service.url}{PAGE}"
    assert (
        login["verification_uri_complete"] == f"{service.url}{PAGE}?user_code={login['user_code']}"
    )
    assert (login["expires_in"], login["interval"]) == (600, 5)


@pytest.mark.parametrize("options", [{}, {"data": {"client_id": "cli"}}, {"json": None}])
async def test_a_login_is_begun_with_any_body_or_none(
    program: Client, options: dict[str, Any]
) -> None:
    assert (await program.post("/oauth/device/authorize", **options)).status == 200


async def test_an_approved_program_gets_a_key(
    program: Client, client: Client, service: Service
) -> None:
    login = await begin(program)
    pending = await ask(program, login["device_code"])
    assert (pending.status, pending.json()["error"]) == (400, "authorization_pending")

    approved = await client.post(DECISION, data={"user_code": login["user_code"]})
    assert (approved.status, approved.json()) == (200, {"message": "Device authorized"})
    granted = (await ask(program, login["device_code"])).json()

    assert set(granted) == {"access_token", "token_type"}
    assert granted["token_type"] == "Bearer"  # noqa: S105  # the kind of token
    mine = (await client.get("/api/keys/current")).json()
    theirs = await service.client_with(granted["access_token"]).get("/api/keys/current")
    assert theirs.json()["user_id"] == mine["user_id"]
    assert theirs.json()["name"] == "device login"


async def test_a_decision_can_be_json(program: Client, client: Client) -> None:
    login = await begin(program)
    assert (await client.post(DECISION, json={"user_code": login["user_code"]})).status == 200
    assert (await program.post(TOKEN, json={"device_code": login["device_code"]})).status == 200


async def test_a_refused_program_gets_no_key(program: Client, client: Client) -> None:
    login = await begin(program)
    refused = await client.post(
        DECISION, data={"user_code": login["user_code"], "approve": "false"}
    )
    assert (refused.status, refused.json()) == (200, {"message": "Device refused"})
    answer = await ask(program, login["device_code"])
    assert (answer.status, answer.json()["error"]) == (400, "access_denied")


async def test_a_program_that_asks_too_often_is_told_to_slow_down(program: Client) -> None:
    login = await begin(program)
    await ask(program, login["device_code"])
    answer = await ask(program, login["device_code"])
    assert answer.status == 400
    assert (answer.json()["error"], answer.json()["interval"]) == ("slow_down", 10)


async def test_an_expired_code_is_worth_nothing(
    program: Client, client: Client, service: Service
) -> None:
    login = await expired_login(service)
    answer = await ask(program, login.device_code.reveal())
    assert (answer.status, answer.json()["error"]) == (400, "expired_token")
    assert (await client.post(DECISION, data={"user_code": login.user_code})).status == 404


async def test_refusals_have_the_one_shape_and_that_of_the_rfc(program: Client) -> None:
    body = (await program.post(TOKEN, data=b"device_code=%ff", headers=FORM)).json()
    assert body["error"] == "expired_token"
    body = (await ask(program, "made-up")).json()
    assert body["error"] == "expired_token"
    assert body["error_description"] == body["detail"]
    assert body["code"] == "bad_request"
    assert body["request_id"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"device_code=",
        b"other=1",
        b"device_code=a%00b",
        b"&".join([b"a=1"] * 50),
        b"device_code=" + b"x" * 300,
    ],
)
async def test_a_form_that_does_not_fit_is_refused_in_the_shape_of_the_rfc(
    program: Client, body: bytes
) -> None:
    answer = await program.post(TOKEN, data=body, headers=FORM)
    assert answer.status == 400
    assert (answer.json()["error"], answer.json()["code"]) == ("invalid_request", "bad_request")
    assert answer.json()["error_description"] == answer.json()["detail"]


async def test_json_that_does_not_fit_is_refused_alike(program: Client) -> None:
    answer = await program.post(TOKEN, json={})
    assert (answer.status, answer.json()["error"]) == (400, "invalid_request")


async def test_a_form_that_is_no_text_is_a_malformed_body(program: Client) -> None:
    answer = await program.post(TOKEN, data=b"\xff", headers=FORM)
    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")


async def test_a_form_of_many_parts_is_not_read(program: Client) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert (await program.post(TOKEN, data=b"--x--", headers=headers)).status == 415


async def test_only_a_user_lets_a_program_in(program: Client) -> None:
    login = await begin(program)
    assert (await program.post(DECISION, data={"user_code": login["user_code"]})).status == 401


# The page


async def test_the_page_shows_the_code_and_loads_its_style_only(program: Client) -> None:
    page = await program.get(f"{PAGE}?user_code=ABCD-EFGH")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Content-Security-Policy"] == (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    )
    assert re.findall(r'(?:src|href|action)="([^"]*)"', page.text) == ["verify.css", "verify"]
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=", page.text)
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert "ABCD-EFGH" in page.text


async def test_the_page_shows_nothing_as_markup(program: Client) -> None:
    page = await program.get(f'{PAGE}?user_code="><script>')
    assert "<script>" not in page.text


async def test_a_user_lets_a_program_in_on_the_page(program: Client, client: Client) -> None:
    login = await begin(program)
    form = {"user_code": login["user_code"], "api_key": client.key or ""}
    page = await program.post(PAGE, data=form)
    assert page.status == 200
    assert "The program is logged in" in page.text
    assert (await ask(program, login["device_code"])).status == 200


async def test_the_style_is_there(program: Client) -> None:
    style = await program.get(f"{PAGE}.css")
    assert style.status == 200
    assert style.headers["Content-Type"].startswith("text/css")


async def test_a_user_refuses_a_program_on_the_page(program: Client, client: Client) -> None:
    login = await begin(program)
    form = {"user_code": login["user_code"], "api_key": client.key or "", "approve": "false"}
    page = await program.post(PAGE, data=form)
    assert page.status == 200
    assert "The program is refused" in page.text
    assert (await ask(program, login["device_code"])).json()["error"] == "access_denied"


async def test_a_wrong_key_on_the_page_lets_nobody_in(program: Client) -> None:
    login = await begin(program)
    page = await program.post(PAGE, data={"user_code": login["user_code"], "api_key": "wrong"})
    assert page.status == 401
    assert "This API key is not valid" in page.text
    assert login["user_code"] in page.text
    assert (await ask(program, login["device_code"])).json()["error"] == "authorization_pending"


async def test_a_wrong_code_on_the_page_is_said_to_be_wrong(
    program: Client, client: Client
) -> None:
    page = await program.post(PAGE, data={"user_code": "X", "api_key": client.key or ""})
    assert page.status == 404
    assert "No login waits with this code" in page.text


# How often


async def test_one_address_starts_so_many_logins_a_minute(program: Client) -> None:
    for _ in range(BEGINNINGS_A_MINUTE):
        await begin(program)
    statuses = {(await program.post("/oauth/device/authorize")).status for _ in range(20)}
    assert 429 in statuses
    assert statuses <= {200, 429}


async def test_one_address_guesses_so_many_codes_and_keys_a_minute(program: Client) -> None:
    form = {"user_code": "X", "api_key": "guess"}
    for path, sent in ((TOKEN, {"device_code": "guess"}), (PAGE, form)):
        answer = await program.post(path, data=sent)
        for _ in range(2 * QUESTIONS_A_MINUTE):
            if answer.status == 429:
                break
            answer = await program.post(path, data=sent)
        assert answer.status == 429
        assert answer.json()["code"] == "too_many_requests"
        assert answer.headers["Retry-After"]


def from_address(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": f"192.0.2.1, {address}"}


async def refused(program: Client, headers: dict[str, str]) -> bool:
    """Ask for logins until one is refused, and return whether that happened."""
    for _ in range(2 * BEGINNINGS_A_MINUTE):
        answer = await program.post("/oauth/device/authorize", headers=headers)
        if answer.status == 429:
            return True
    return False


async def test_behind_a_trusted_proxy_each_client_counts_for_itself(
    service: Service, program: Client
) -> None:
    server = msgspec.structs.replace(service.config.server, trusted_proxies=("127.0.0.1",))
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    assert await refused(program, from_address("198.51.100.1"))
    for headers in (from_address("198.51.100.2"), {"Forwarded": 'for="[2001:db8::1]"'}, {}):
        answer = await program.post("/oauth/device/authorize", headers=headers)
        assert answer.status == 200


async def test_what_a_stranger_says_of_its_address_does_not_count(program: Client) -> None:
    assert await refused(program, from_address("198.51.100.1"))
    statuses = {
        (await program.post("/oauth/device/authorize", headers=from_address(str(number)))).status
        for number in range(20)
    }
    assert 429 in statuses


async def test_the_command_line_gets_a_key_that_says_which_sdk_it_has(
    program: Client, client: Client, service: Service
) -> None:
    login = await begin(program)
    approved = await client.post(DECISION, data={"user_code": login["user_code"]})
    assert approved.status == 200, approved.text
    form, agent = {"device_code": login["device_code"]}, {"User-Agent": "python-httpx/0.28.1"}
    granted = (await program.post(TOKEN, data=form, headers=agent)).json()
    key = granted["access_token"]
    assert key.endswith("~sdk-1.21")
    assert (await service.client_with(key).get("/api/keys/current")).status == 200
    plain = key.removesuffix("~sdk-1.21")
    assert (await service.client_with(plain).get("/api/keys/current")).status == 200
    # Its user may log in with it elsewhere, too.
    assert (await program.post("/api/v1/logins", json={"api_key": key})).status == 201
    login = await begin(program)
    page = await program.post(PAGE, data={"user_code": login["user_code"], "api_key": key})
    assert (page.status, "is logged in" in page.text) == (200, True)
