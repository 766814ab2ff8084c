"""Who has no password at the proxy for front ends: readers of shared pages, agents, editors. In a real nginx and browser."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from agentsvc.app import published_routes
from tests.conftest import FAST
from tests.http.gateway.steps import Box, until
from tests.http.gateway.upstream import Upstream
from tests.http.v1.test_mcp_server import session_of
from tests.http.v1.test_sharing import share, told, work
from tests.live import nginx
from tests.live.conftest import unavailable
from tests.live.test_front_end import LIST, LOGIN, READ, RECIPE, Front, fronted
from tests.service import Client, Service

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="function"),
]

OPEN = (
    "/.well-known/oauth-",
    "/api/shared-",
    "/api/v1/web-client/config",
    "/oauth/device/",
    "/shared/conversations/",
)
"""What is answered without the password and without any key."""
TITLE = "what only its owner may know"
TRAVERSALS = (
    "/api/shared-events/../v1/app-conversations/search",
    "/api/shared-events/%2e%2e/v1/app-conversations/search",
    "/api/shared-events/..%2fv1/app-conversations/search",
    "/api/shared-events%2f..%2f..%2fapi/v1/app-conversations/search",
    "/shared/conversations/../../api/v1/app-conversations/search",
    "/shared/conversations/..%2f..%2fapi/v1/app-conversations/search",
    "/mcp/../api/v1/app-conversations/search",
    "/mcp/..%2fapi/v1/app-conversations/search",
    "/.well-known/oauth-x/..%2f..%2fapi/v1/app-conversations/search",
    "//api/v1/app-conversations/search",
    "/api/v1/web-client/config/../../app-conversations/search",
    "/assets/../front-end.key",
    "/assets/..%2ffront-end.key",
)


@pytest_asyncio.fixture(loop_scope="function")
async def front(service: Service) -> AsyncIterator[Front]:
    if nginx.program() is None:
        unavailable("nginx is not installed")
    owner = await service.make_client()
    await owner.save_settings()
    box = Box(service=service, owner=owner, upstream=Upstream(), id="", key="")
    async with fronted(box, RECIPE.read_text()) as front:
        yield front


async def _shared(front: Front) -> tuple[str, dict[str, str]]:
    """Return a conversation of the user whose key nginx adds, and a link to it."""
    conversation_id = await told(front.box.service, front.box.owner, work("the text"))
    path = f"/api/v1/app-conversations/{conversation_id}"
    assert (await front.box.owner.patch(path, json={"title": TITLE})).status == 200
    return conversation_id, await share(front.box.owner, conversation_id)


async def test_a_visitor_reads_the_shared_page_and_nothing_else(front: Front) -> None:
    conversation_id, link = await _shared(front)
    values = {"conversation_id": conversation_id, "share_id": link["id"]}
    async with aiohttp.ClientSession() as visitor:
        for route in published_routes(FAST):
            path = route.path.replace("{path:.*}", "x")
            for name, value in values.items():
                path = path.replace(f"{{{name}}}", value)
            async with visitor.request(route.method, f"{front.url}{path}") as answer:
                if not path.startswith(OPEN):
                    assert answer.status == 401, f"{route.method} {path}"
        for path in TRAVERSALS:
            url = URL(f"{front.url}{path}", encoded=True)
            async with visitor.get(url) as answer:
                text = await answer.text()
                assert TITLE not in text
                assert str(front.box.owner.key) not in text
                assert answer.status in (400, 401, 404), path
        for path in (LIST, "/api/v1/settings", "/sandboxes/x/agent/", "/", "/nothing"):
            async with visitor.get(f"{front.url}{path}") as answer:
                assert answer.status == 401, path


async def test_a_visitor_without_the_password_sees_the_shared_page(front: Front) -> None:
    _, link = await _shared(front)
    browser = front.context.browser
    assert browser is not None
    context = await browser.new_context()
    page = await context.new_page()
    answer = await page.goto(f"{front.url}/shared/conversations/{link['id']}")
    assert answer is not None
    assert (answer.status, await page.text_content("body")) == (200, "here")
    assert answer.headers["x-robots-tag"] == "noindex, nofollow, noarchive"
    assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"
    query = f"conversation_id={link['id']}"
    assert "the text" in await page.evaluate(READ, f"/api/shared-events/search?{query}")
    assert TITLE in await page.evaluate(READ, f"/api/shared-conversations?ids={link['id']}")
    assert "null" in await page.evaluate(READ, f"/api/shared-events/{link['id']}/none")
    assert "feature_flags" in await page.evaluate(READ, "/api/v1/web-client/config")
    assert (await front.box.owner.delete(f"/api/v1/shares/{link['id']}")).status == 200
    assert await page.evaluate(READ, f"/api/shared-conversations?ids={link['id']}") == "[null]"
    await context.close()


async def test_agents_and_editors_show_keys_of_their_own(front: Front) -> None:
    await _shared(front)
    owner = front.box.owner
    async with aiohttp.ClientSession() as http:
        for headers in ({}, LOGIN, {"Authorization": "Bearer asvc_wrong"}):
            for path in ("/mcp", "/acp"):
                method = "POST" if path == "/mcp" else "GET"
                url = f"{front.url}{path}"
                async with http.request(method, url, headers=headers) as answer:
                    assert answer.status == 401, path
        async with http.get(f"{front.url}/.well-known/oauth-protected-resource/mcp") as answer:
            assert (await answer.json())["resource"] == f"{front.url}/mcp"
        async with http.post(f"{front.url}/oauth/device/authorize") as answer:
            assert answer.status == 200
        key = {"X-Session-API-Key": str(owner.key)}
        async with http.ws_connect(f"{front.url}/acp", headers=key) as socket:
            assert not socket.closed
    program = Client(front.url, owner.key)
    try:
        async with session_of(program) as session:
            found = await session.call_tool("list_conversations", {})
            assert TITLE in str(found.structuredContent)
    finally:
        await program.close()
    await until(lambda: ("GET", "/acp", 101) in front.answered())
