"""Sign-in with a published provider, in a browser: the login page, its role, and the logout there."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Page, expect

from agentsvc.base.values import new_key
from tests.live.browser import chromium
from tests.live.client import PATIENCE
from tests.live.clients.published import Client as Published
from tests.service import Service

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="function"),
]


@asynccontextmanager
async def running(published: Published, **task: str) -> AsyncIterator[str]:
    """Run the provider and return its address."""
    program = str(published.programs / "oidc_provider.mjs")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *published.command, program, json.dumps(task), cwd=published.home, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            issuer = (await process.stdout.readline()).decode().strip()
            # It warns of what is not for production there, too.
            while not issuer.startswith("http"):
                assert process.returncode is None
                issuer = (await process.stdout.readline()).decode().strip()
        yield issuer
    finally:
        process.stdin.close()
        await process.communicate()


async def sign_in(page: Page, url: str, name: str) -> None:
    await page.goto(f"{url}/login")
    await page.get_by_role("button", name="Sign in with The company").click()
    await page.locator("input[name=login]").fill(name)
    await page.locator("input[name=password]").fill("any")
    await page.locator("button[type=submit]").click()
    await page.locator("button[type=submit]").click()
    await page.wait_for_url(lambda url: "/login" not in url)


async def user_on(page: Page) -> tuple[str, str]:
    found: list[str] = await page.evaluate(
        """async () => {
          const name = Object.keys(localStorage).find((one) => one.startsWith('agentsvc-login'));
          const headers = {'X-Agentsvc-Login': localStorage.getItem(name)};
          const answer = await (await fetch('/api/keys/current', {headers})).json();
          return [answer.user_name ?? '', answer.role ?? answer.code];
        }"""
    )
    return found[0], found[1]


async def test_a_published_provider_signs_users_in_and_out(
    oidc_provider: Published, service: Service, tmp_path: Path
) -> None:
    boss = await service.make_client()
    secret = tmp_path / "secret"
    secret.write_text(new_key().reveal())
    async with running(oidc_provider, url=service.url, secret=secret.read_text()) as issuer:
        provider = {
            "title": "The company",
            "issuer": issuer,
            "client_id": "agentsvc",
            "client_secret_file": str(secret),
            "new_users": True,
            "roles": {"ops": "admin"},
        }
        section = {"enabled": True, "providers": {"company": provider}}
        extensions = {**service.config.extensions, "sign_in": section}
        service.config = msgspec.structs.replace(service.config, extensions=extensions)
        await service.restart()
        async with chromium() as browser:
            expect.set_options(timeout=PATIENCE * 1000)
            pages = [await (await browser.new_context()).new_page() for _ in range(2)]
            for page, name in zip(pages, ("olga", "mo"), strict=True):
                page.set_default_timeout(PATIENCE * 1000)
                await sign_in(page, service.url, name)
            assert [await user_on(page) for page in pages] == [("olga", "admin"), ("mo", "member")]
            users = {one["name"]: one["role"] for one in (await boss.get("/api/v1/users")).json()}
            assert users == {"admin": "admin", "olga": "admin", "mo": "member"}
            there = await pages[0].context.new_page()
            await there.goto(f"{issuer}/session/end")
            await there.locator("button[value=yes]").click()
            await expect(there.get_by_role("heading", name="Sign-out Success")).to_be_visible()
            # The provider tells the server before it shows that.
            assert await user_on(pages[0]) == ("", "not_authenticated")
            assert await user_on(pages[1]) == ("mo", "member")
            # An answer of the provider that another browser began logs nobody in here.
            await pages[0].goto(f"{service.url}/login?code=a&state=b")
            await expect(pages[0].get_by_text("not begun in this tab")).to_be_visible()
            assert "code=" not in pages[0].url
