"""The console's page and its parts, as a browser gets them."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentsvc.http.web import read_console
from tests.service import Client, Service

STATIC = Path(__file__).parents[2] / "agentsvc" / "http" / "web" / "static"
PARTS = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.*"))
SENT = [path for path in PARTS if path.endswith((".css", ".js", ".svg"))]
MEDIA = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture
async def anyone(service: Service) -> Client:
    return service.client_with(None)


@pytest.fixture
def tag() -> str:
    return read_console().tag


def address(tag: str, path: str) -> str:
    return f"/console/{tag}/{path}"


async def test_the_page_needs_no_key_and_names_parts_that_are_there(anyone: Client) -> None:
    page = await anyone.get("/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
    assert len(named) >= 3
    for path in named:
        assert (await anyone.get(f"/{path}")).status == 200


async def test_the_page_may_run_and_load_only_what_is_here(anyone: Client) -> None:
    page = await anyone.get("/")
    policy = page.headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(policy)
    assert {"base-uri 'none'", "frame-ancestors 'none'", "trusted-types 'none'"} <= set(policy)
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "<style" not in page.text
    assert not re.search(r"<script(?![^>]* src=)", page.text)
    assert not re.search(r"https?://", page.text)


async def test_the_page_is_sent_again_only_if_it_is_another_one(anyone: Client, tag: str) -> None:
    first = await anyone.get("/")
    assert first.headers["Cache-Control"] == "no-cache"
    again = await anyone.get("/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    other = await anyone.get("/", headers={"If-None-Match": '"other"'})
    assert (other.status, other.body) == (200, first.body)
    assert tag in first.text


async def test_a_part_is_sent_as_what_it_is_and_may_be_kept(anyone: Client, tag: str) -> None:
    for path in SENT:
        part = await anyone.get(address(tag, path))
        assert part.status == 200, path
        assert part.headers["Content-Type"] == f"{MEDIA[path.rpartition('.')[2]]}; charset=utf-8"
        assert part.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert part.headers["X-Content-Type-Options"] == "nosniff"
        assert part.body == (STATIC / path).read_bytes()


async def test_nothing_else_is_a_part(anyone: Client, tag: str) -> None:
    names = ("", "none.js", "index.html", "vendor", "vendor/", "vendor/README.md")
    tricks = ("../__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py", "app.js%00", "%ff")
    for path in names + tricks:
        assert (await anyone.get(address(tag, path))).status in {400, 404}, path


async def test_parts_of_another_version_are_not_here(anyone: Client) -> None:
    answer = await anyone.get(address("0" * 16, "app.js"))
    assert (answer.status, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", [path for path in SENT if path.endswith(".js")])
def test_a_script_imports_only_what_is_here_and_makes_no_markup_of_texts(path: str) -> None:
    text = (STATIC / path).read_text()
    # In a library that is one long line, the word may stand in a text of its.
    begin = r"(?:^|;)" if path.startswith("vendor/") else ""
    for name in re.findall(
        begin + r'(?:import[^;"]*from|import|export[^;"]*from)\s*"([^"]+)"', text, re.MULTILINE
    ):
        assert name.startswith("./")
        assert ((STATIC / path).parent / name).is_file()
    if not path.startswith("vendor/"):
        assert not re.search(r"innerHTML|eval\(|new Function|document\.write", text)


def test_what_is_vendored_has_its_license_beside_it() -> None:
    vendor = STATIC / "vendor"
    about = (vendor / "README.md").read_text()
    for path in vendor.glob("*.js"):
        rows = [line for line in about.splitlines() if line.startswith(f"| `{path.name}`")]
        assert rows
        for row in rows:
            [named] = re.findall(r"`(LICENSE-[a-z.-]+\.txt)`", row)
            assert (vendor / named).stat().st_size > 1000


def test_what_is_vendored_is_what_the_build_names() -> None:
    wanted = json.loads((STATIC.parent / "libraries" / "package.json").read_text())["dependencies"]
    about = (STATIC / "vendor" / "README.md").read_text()
    for name, version in wanted.items():
        assert f"`{name}` {version}" in about


async def test_below_a_path_the_page_is_found_with_and_without_the_slash(
    service: Service, anyone: Client
) -> None:
    server = replace(service.config.server, public_url="https://example.org/agents")
    service.config = replace(service.config, server=server)
    await service.restart()
    bare = await anyone.get("/agents", allow_redirects=False)
    assert (bare.status, bare.headers["Location"]) == (308, "/agents/")
    assert (await anyone.get("/agents/")).body == (await anyone.get("/")).body
