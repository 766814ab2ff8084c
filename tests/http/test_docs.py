"""The description and the page that shows it, through the socket."""

import base64
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentsvc.app import published_routes
from agentsvc.cli import cli
from agentsvc.config.schema import Config
from agentsvc.http.path_parts import plain_path
from agentsvc.http.routes import mounted
from tests.conftest import FAST
from tests.service import Client, Service

DOCUMENT = "/openapi.json"
PAGE = "/docs"
PARTS = {
    PAGE: "text/html",
    "/docs/viewer.css": "text/css",
    "/docs/viewer.js": "text/javascript",
    "/docs/icon.svg": "image/svg+xml",
}
PAGES = (DOCUMENT, *PARTS)


def basic(name: str, password: str) -> dict[str, str]:
    pair = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def _described(config: Config) -> set[str]:
    """Return the paths of all published routes and that of the event socket of V0."""
    return {plain_path(route.path) for route in published_routes(config)} | {"/socket.io/"}


@pytest.fixture
async def anyone(service: Service) -> Client:
    return service.client_with(None)


async def test_the_description_is_that_of_the_routes(client: Client) -> None:
    answer = await client.get(DOCUMENT)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    paths = answer.json()["paths"]
    assert set(paths) == _described(FAST)


async def test_a_browser_without_a_key_is_told_to_ask_for_it(anyone: Client) -> None:
    answer = await anyone.get(DOCUMENT)
    assert (answer.status, answer.json()["code"]) == (401, "not_authenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")


async def test_a_browser_sends_the_key_as_the_password(client: Client, anyone: Client) -> None:
    assert (await anyone.get(DOCUMENT, headers=basic("anybody", str(client.key)))).status == 200


@pytest.mark.parametrize("path", PARTS)
async def test_the_page_itself_needs_no_key(anyone: Client, path: str) -> None:
    assert (await anyone.get(path)).status == 200


@pytest.mark.parametrize(
    "header",
    [
        basic("anybody", "wrong"),
        basic("anybody", ""),
        basic("anybody", "ü"),
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"no colon").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
    ],
)
async def test_a_wrong_password_opens_nothing(anyone: Client, header: dict[str, str]) -> None:
    answer = await anyone.get(DOCUMENT, headers=header)
    assert (answer.status, answer.json()["detail"]) == (401, "Unauthorized")


async def test_a_password_opens_nothing_but_the_description(
    service: Service, client: Client
) -> None:
    anyone = service.client_with(None)
    pages = {route.path for route in mounted(service.app) if route.is_page}
    assert pages == {DOCUMENT}
    for path in ("/api/v1/settings", "/api/settings", "/api/keys"):
        answer = await anyone.get(path, headers=basic("anybody", str(client.key)))
        assert answer.status == 401
        # A browser does not ask for a password then.
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="agentsvc"'


@pytest.mark.parametrize(("path", "media"), PARTS.items())
async def test_the_page_may_load_only_what_is_here(client: Client, path: str, media: str) -> None:
    answer = await client.get(path)
    assert answer.headers["Content-Type"].partition(";")[0] == media
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(policy)
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_has_no_code_and_no_style_of_its_own(client: Client) -> None:
    text = (await client.get(PAGE)).text
    assert "<style" not in text
    assert " style=" not in text
    assert " on" not in text.partition("<body>")[2].replace(" only", "")
    assert "http://" not in text
    assert "https://" not in text
    script = (await client.get("/docs/viewer.js")).text
    assert "innerHTML" not in script
    assert "eval(" not in script


async def test_the_page_is_at_one_address(client: Client) -> None:
    answer = await client.get(f"{PAGE}/", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (308, "../docs")
    assert (await client.get(f"{PAGE}/")).body == (await client.get(PAGE)).body


@pytest.mark.parametrize("path", PAGES)
async def test_what_a_browser_has_already_is_not_sent_again(client: Client, path: str) -> None:
    first = await client.get(path)
    assert first.headers["Cache-Control"] == "private, no-cache"
    again = await client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert (await client.get(path, headers={"If-None-Match": '"other"'})).body == first.body
    assert (await client.get(path, headers={"If-None-Match": "rubbish"})).status == 200


async def test_the_command_prints_what_the_server_answers(client: Client, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    tables = "".join(f"[{name}]\nenabled = true\n" for name in FAST.extensions)
    config.write_text(f"[server]\ndevice_login = true\n{tables}")
    result = CliRunner().invoke(cli, ["openapi", "--config", str(config)])
    assert result.exit_code == 0
    assert result.stderr == ""
    assert json.loads(result.stdout) == (await client.get(DOCUMENT)).json()


def test_the_command_needs_no_data_and_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "api.json"
    result = CliRunner().invoke(cli, ["openapi", "--output", str(file)])
    assert (result.exit_code, result.output) == (0, "")
    assert set(json.loads(file.read_text())["paths"]) == _described(Config())
    assert [path.name for path in tmp_path.iterdir()] == ["api.json"]


def test_the_command_says_where_a_proxy_has_the_server(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[server]\npublic_url = "https://example.com/agents/"\n')
    result = CliRunner().invoke(cli, ["openapi", "--config", str(config)])
    assert json.loads(result.stdout)["servers"] == [{"url": "/agents"}]


def test_the_command_says_why_it_cannot_write(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["openapi", "--output", str(tmp_path / "no" / "api.json")])
    assert result.exit_code == 1
    assert "Could not open file" in result.stderr
    assert "No such file or directory" in result.stderr
