"""Which headers pass, which do not, and which are changed."""

import pytest

from agentsvc.base.errors import BadRequest
from agentsvc.http.gateway.headers import confine_cookie, legible, to_lines
from tests.http.gateway.steps import Box, Wire, head, session

MOUNT = "/sandboxes/1/worker_1"


async def _seen_headers(box: Box, *lines: str, port: str = "worker_1") -> dict[str, list[str]]:
    """Send lines as they are and return what arrived in the sandbox."""
    wire = await Wire.open(box.service)
    key = f"X-Session-API-Key: {box.key}"
    wire.send(head("GET", box.path("/x", port), key, *lines))
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 200
    seen = box.upstream.seen[-1]
    return {name.lower(): seen.all(name) for name, _ in seen.headers}


async def test_what_is_for_one_connection_stays_on_it(box: Box) -> None:
    seen = await _seen_headers(
        box,
        "Connection: close, X-One, x-TWO",
        "Connection: X-Three",
        "Keep-Alive: timeout=5",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: Basic eDp5",
        "TE: gzip;q=0.5",
        "Trailer: X-End",
        "Upgrade: h2c",
        "X-One: 1",
        "X-Two: 2",
        "X-Three: 3",
        "X-Four: 4",
    )
    assert seen["x-four"] == ["4"]
    for name in ("keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer"):
        assert name not in seen
    for name in ("upgrade", "x-one", "x-two", "x-three"):
        assert name not in seen


async def test_the_connection_header_cannot_take_away_what_counts(box: Box) -> None:
    wire = await Wire.open(box.service)
    lines = (
        f"X-Session-API-Key: {box.key}",
        "Connection: close, Content-Length, X-Forwarded-For, X-Session-API-Key, Host, Cookie",
        "Content-Length: 5",
        "Cookie: a=1",
    )
    wire.send(head("POST", box.path("/api/x", "agent"), *lines) + b"hello")
    status, _ = await wire.read_head()
    await wire.close()
    seen = box.upstream.seen[-1]
    assert (status, seen.body) == (200, b"hello")
    assert seen.one("X-Session-API-Key") == box.key
    assert seen.one("X-Forwarded-For") == "127.0.0.1"
    assert seen.one("Cookie") == "a=1"


async def test_the_sandbox_is_told_what_the_client_asked_for(box: Box) -> None:
    seen = await _seen_headers(
        box,
        "X-Forwarded-For: 6.6.6.6",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: evil.test",
        "X-Forwarded-Prefix: /evil",
        "Forwarded: for=6.6.6.6;host=evil.test",
        "X-Real-IP: 6.6.6.6",
        "Via: 1.0 somebody",
    )
    assert seen["x-forwarded-for"] == ["127.0.0.1"]
    assert seen["x-forwarded-proto"] == ["http"]
    assert seen["x-forwarded-host"] == ["gateway.test"]
    assert seen["x-forwarded-prefix"] == [box.path("")]
    assert seen["via"] == ["1.0 somebody, 1.1 agentsvc"]
    assert seen["host"] == [box.upstream.url.removeprefix("http://")]
    assert "forwarded" not in seen
    assert "x-real-ip" not in seen


async def test_nothing_is_added_that_the_client_did_not_say(box: Box) -> None:
    seen = await _seen_headers(box)
    added = {"host", "via", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"}
    assert set(seen) == added | {"x-forwarded-prefix", "x-request-id"}


async def test_values_that_are_no_utf8_pass_as_text(box: Box) -> None:
    wire = await Wire.open(box.service)
    raw = head("GET", box.path("/x"), f"X-Session-API-Key: {box.key}", "X-Name: @", "X-Text: grüße")
    wire.send(raw.replace(b"@", b"\xe9t\xe9"))
    assert (await wire.read_head())[0] == 200
    await wire.close()
    assert box.upstream.seen[-1].one("X-Name") == "été"
    assert box.upstream.seen[-1].one("X-Text") == "grüße"


async def test_our_own_cookies_stay_here(box: Box) -> None:
    seen = await _seen_headers(box, "Cookie: a=1; agentsvc_login=secret; b=2")
    assert seen["cookie"] == ["a=1; b=2"]
    assert "cookie" not in await _seen_headers(box, "Cookie: agentsvc_login=secret")


async def test_an_answers_headers_pass_and_have_no_effect_elsewhere(box: Box) -> None:
    own = box.upstream.url
    box.upstream.answer_headers = [
        ("X-App", "1"),
        ("X-App", "2"),
        ("Cache-Control", "max-age=60"),
        ("Connection", "X-Private"),
        ("X-Private", "1"),
        ("Keep-Alive", "timeout=1"),
        ("Strict-Transport-Security", "max-age=1"),
        ("Clear-Site-Data", '"*"'),
        ("Alt-Svc", "h3"),
        ("Secure-Session-Registration", '(ES256); path="/x"'),
        ("Use-As-Dictionary", 'match="/*"'),
        ("Accept-CH", "Sec-CH-UA-Model"),
        ("Service-Worker-Allowed", "/"),
        ("Access-Control-Allow-Origin", "https://app.test"),
        ("Set-Cookie", "sid=1; Path=/; HttpOnly"),
        ("Set-Cookie", "agentsvc_login=forged"),
        ("Location", f"{own}/elsewhere?a=1"),
    ]
    async with session(box.key) as client, client.get(box.url("/x")) as response:
        headers = response.headers
    assert headers.getall("X-App") == ["1", "2"]
    assert headers["Cache-Control"] == "max-age=60"
    assert headers["Access-Control-Allow-Origin"] == "https://app.test"
    assert headers["Service-Worker-Allowed"] == box.path("/")
    assert headers["Location"] == box.path("/elsewhere?a=1")
    assert headers.getall("Set-Cookie") == [f"sid=1; HttpOnly; Path={box.path('/')}"]
    for name in ("X-Private", "Keep-Alive", "Strict-Transport-Security", "Clear-Site-Data"):
        assert name not in headers
    for name in ("Alt-Svc", "Pragma", "Expires", "X-Content-Type-Options"):
        assert name not in headers
    for name in ("Secure-Session-Registration", "Use-As-Dictionary", "Accept-CH"):
        assert name not in headers


async def test_who_may_read_an_agent_servers_answer_is_said_here(box: Box) -> None:
    box.upstream.answer_headers = [("Access-Control-Allow-Origin", "*")]
    answer = await box.get("/x", "agent")
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/login", "{mount}/login"),
        ("{mount}/login", "{mount}/login"),
        ("{own}", "{mount}/"),
        ("{own}/a?b=c#d", "{mount}/a?b=c#d"),
        ("{own}evil.test/", "{own}evil.test/"),
        ("next", "next"),
        ("?page=2", "?page=2"),
        ("//other.test/x", "//other.test/x"),
        ("https://other.test/x", "https://other.test/x"),
    ],
)
async def test_a_redirect_leads_to_where_the_client_finds_it(
    location: str, expected: str, box: Box
) -> None:
    names = {"mount": box.path(""), "own": box.upstream.url}
    box.upstream.answer_headers = [("Location", location.format(**names))]
    answer = await box.get("/x")
    assert answer.headers["Location"] == expected.format(**names)


@pytest.mark.parametrize(
    ("cookie", "expected"),
    [
        ("a=1", f"a=1; Path={MOUNT}/"),
        ("a=1; path=/sub; Secure", f"a=1; Secure; Path={MOUNT}/sub"),
        (f"a=1; Path={MOUNT}/sub", f"a=1; Path={MOUNT}/sub"),
        ("a=1; Path=nonsense", f"a=1; Path={MOUNT}/"),
        ("a=1; Domain=example.org; DOMAIN = .org", f"a=1; Path={MOUNT}/"),
        ("a=1; Path=/x; Path=/", f"a=1; Path={MOUNT}/"),
        ("a=1; Max-Age=5; SameSite=None", f"a=1; Max-Age=5; SameSite=None; Path={MOUNT}/"),
        (f"a=1; Path={MOUNT}-other/", f"a=1; Path={MOUNT}{MOUNT}-other/"),
        (f"a=1; Path={MOUNT}/../../other", f"a=1; Path={MOUNT}/../../other"),
        ("__Host-a=1; Path=/; Secure", None),
        (" __host-a=1", None),
        ("AGENTSVC_login=1", None),
        ("", f"; Path={MOUNT}/"),
    ],
)
def test_a_cookie_is_confined_to_its_sandbox(cookie: str, expected: str | None) -> None:
    assert confine_cookie(cookie, MOUNT) == expected


def test_text_in_headers_is_made_sendable() -> None:
    raw = b"\xe9".decode("utf-8", "surrogateescape")
    assert [legible(text) for text in ("plain", "grüße", raw)] == ["plain", "grüße", "é"]


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "a\x7f", "a\r\nX: b"])
def test_what_could_end_a_line_is_not_sent(value: str) -> None:
    with pytest.raises(BadRequest):
        to_lines([("X", value)])


def test_lines_are_written_as_they_were_read() -> None:
    fields = (("X", "a\tb é"), ("Y", b"\xe9".decode("utf-8", "surrogateescape")))
    assert to_lines(fields) == b"X: a\tb \xc3\xa9\r\nY: \xe9\r\n"
