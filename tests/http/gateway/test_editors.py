"""The editor at an origin of its own: its own cookie opens it, for nobody else's pages."""

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import Box, session
from tests.http.gateway.upstream import Upstream
from tests.service import Answer, login_headers

HOST = "vscode-{id}.localhost"
VISIT = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}


async def _ask(box: Box, tail: str, method: str = "GET", **headers: str) -> Answer:
    nobody = box.service.client_with(None)
    sent = {"Host": HOST.format(id=box.id), **headers}
    return await nobody.request(method, tail, headers=sent, allow_redirects=False)


async def test_its_token_opens_it_and_reaches_it(box: Box) -> None:
    answer = await _ask(box, f"/?tkn={box.key}&folder=x")
    assert (answer.status, box.upstream.seen[-1].raw_path) == (200, f"/?tkn={box.key}&folder=x")
    assert (await _ask(box, f"/?tkn={box.owner.key}")).status == 401
    assert (await _ask(box, "/")).status == 401
    cookie = f"vscode-tkn={box.key}; a=1"
    assert (await _ask(box, "/static", Cookie=cookie)).status == 200
    assert box.upstream.seen[-1].one("Cookie") == cookie


@pytest.mark.parametrize(
    ("method", "said", "status"),
    [
        ("GET", VISIT, 200),
        ("GET", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("POST", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 401),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 401),
        ("POST", VISIT, 401),
        ("POST", {"Origin": "http://worker-1-{id}.localhost"}, 401),
        ("GET", {"Origin": "null"}, 401),
    ],
)
async def test_its_cookie_counts_for_its_own_requests(
    method: str, said: dict[str, str], status: int, box: Box
) -> None:
    headers = {name: text.format(id=box.id) for name, text in said.items()}
    cookie = f"vscode-tkn={box.key}"
    assert (await _ask(box, "/x", method, Cookie=cookie, **headers)).status == status
    assert len(box.upstream.seen) == (status == 200)


@pytest.mark.parametrize(
    ("tail", "host", "shown_in", "expected"),
    [
        ("/", HOST, "iframe", "vscode-tkn=1; HttpOnly; SameSite=None; Secure; Partitioned; Path=/"),
        ("/", HOST, "document", "vscode-tkn=1; SameSite=Lax; HttpOnly; Path=/"),
        (
            "/",
            "worker-1-{id}.localhost",
            "iframe",
            "vscode-tkn=1; SameSite=Lax; HttpOnly; Path=/",
        ),
    ],
)
async def test_inside_another_sites_page_its_cookie_is_marked_for_that(
    tail: str, host: str, shown_in: str, expected: str, box: Box
) -> None:
    box.upstream.answer_headers = [("Set-Cookie", "vscode-tkn=1; SameSite=Lax; HttpOnly; Path=/")]
    headers = {"Host": host.format(id=box.id), "Sec-Fetch-Dest": shown_in}
    async with (
        session(box.key) as client,
        client.get(box.service.url + tail, headers=headers) as response,
    ):
        assert (response.status, response.headers.getall("Set-Cookie")) == (200, [expected])


async def test_a_login_opens_no_editor_there(box: Box) -> None:
    answer = await box.service.client_with(None).post(
        "/api/v1/logins", json={"api_key": str(box.owner.key)}
    )
    assert (await _ask(box, "/x", **login_headers(answer))).status == 401
    assert box.upstream.seen == []


@pytest.mark.parametrize(
    ("trusts", "shown_in", "status"),
    [
        (False, "document", 403),
        (False, "iframe", 403),
        (False, "empty", 200),
        (True, "document", 200),
    ],
)
async def test_below_a_path_a_browser_is_told_what_the_editor_needs(
    start_gate: StartGate, upstream: Upstream, shown_in: str, status: int, *, trusts: bool
) -> None:
    gate = await start_gate(GatewayConfig(start_seconds=10, trust_editors=trusts))
    box = await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))
    shown = {"Sec-Fetch-Dest": shown_in}
    answer = await box.owner.get(box.path("/", "vscode"), headers=shown)
    assert answer.status == status
    assert ("gateway.sandbox_domain" in answer.text) == (status == 403)
