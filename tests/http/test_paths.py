"""Paths whose patterns are made late mean what those of aiohttp mean."""

from typing import Final

import pytest
import yarl
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from agentsvc.app import published_routes
from agentsvc.config import Config
from agentsvc.http.paths import VariablePath

TEMPLATES: Final = ("/a/{id}", "/a/{id}/", "/a.b/{id}/c-d/{name}/e_f")
PATHS: Final = (
    "/a/1",
    "/a/1/",
    "/a/",
    "/a/1/2",
    "/a/b%2Fc",
    "/a/100%25",
    "/a/%C3%A4%20b",
    "/a/{x}",
    "/a.b/1/c-d/2/e_f",
    "/aXb/1/c-d/2/e_f",
    "/a.b/1/c-d/2/e_f/g",
)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("path", PATHS)
async def test_a_path_is_found_as_aiohttp_finds_it(template: str, path: str) -> None:
    found = []
    for made in (VariablePath(template), web.DynamicResource(template)):
        made.add_route("GET", _handle)
        match, methods = await made.resolve(make_mocked_request("GET", path))
        found.append((match and dict(match), methods))
    assert found[0] == found[1]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_path_says_of_itself_what_one_of_aiohttp_says(template: str) -> None:
    late, early = VariablePath(template), web.DynamicResource(template)
    for made in (late, early):
        made.add_prefix("/below")
    assert late.canonical == early.canonical
    assert late.get_info()["formatter"] == early.get_info()["formatter"]
    assert late.get_info()["pattern"].fullmatch(f"/below{template.format(id=1, name=2)}")
    assert late.url_for(id="b c", name="d") == early.url_for(id="b c", name="d")
    assert late.raw_match(f"/below{template}")


@pytest.mark.parametrize(
    ("template", "fits"),
    [
        ("/a", False),
        ("/a/{id}", True),
        ("/a/{id:[0-9]+}", False),
        ("/a/{path:.*}", False),
        ("/a b/{id}", False),
        ("/ä/{id}", False),
        ("/a/{id", False),
    ],
)
def test_other_paths_are_left_to_aiohttp(template: str, fits: bool) -> None:
    assert VariablePath.fits(template) is fits


def test_most_paths_of_the_server_are_made_late() -> None:
    paths = [route.path for route in published_routes(Config()) if "{" in route.path]
    late = [path for path in paths if VariablePath.fits(path)]
    assert len(late) > len(paths) // 2
    assert all(yarl.URL(path).raw_path != path for path in late)


async def _handle(_: web.Request) -> web.Response:
    return web.Response()
