"""The guide through the socket: every page, every link, and nothing but what is here."""

import re
from html import unescape
from urllib.parse import urljoin, urlsplit

import pytest

from agentsvc.http.web.guide import page_files
from agentsvc.http.web.markdown import render
from tests.service import Client, Service

GUIDE = "/docs/guide/"
PAGES = [name for name in page_files() if name != "index"]
TABLE = (
    "<table>\n<thead><tr><th>a</th><th>b</th></tr></thead>\n"
    "<tbody>\n<tr><td><code>c|d</code></td><td></td></tr>\n</tbody>\n</table>"
)
_HREF = re.compile(r'(?:href|src)="([^"]+)"')
_ID = re.compile(r' id="([^"]+)"')


@pytest.fixture
async def anyone(service: Service) -> Client:
    return service.client_with(None)


async def test_every_page_is_reached_by_links_and_every_link_is_answered(anyone: Client) -> None:
    """A browser that follows links, without a key."""
    seen: dict[str, str] = {}
    left, fragments = [GUIDE], set()
    while left:
        path = left.pop()
        answer = await anyone.get(path)
        assert answer.status == 200, path
        seen[path] = answer.text if path.startswith(GUIDE) and "." not in path else ""
        for href in map(unescape, _HREF.findall(seen[path])):
            found = urlsplit(urljoin(f"http://here{path}", href))
            if found.netloc != "here":
                continue
            if found.fragment:
                fragments.add((found.path, found.fragment))
            if found.path not in {*seen, *left}:
                left.append(found.path)
    assert {f"{GUIDE}{name}" for name in PAGES} <= set(seen)
    for path, fragment in fragments:
        assert fragment in _ID.findall(seen[path]), (path, fragment)


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_loads_nothing_from_elsewhere_and_runs_nothing(
    anyone: Client, name: str
) -> None:
    answer = await anyone.get(GUIDE + name)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in answer.text
    assert " style=" not in answer.text
    assert not re.search(r'(src|<link[^>]* href)="https?:', answer.text)
    # Whatever of Markdown is not understood would be left over.
    prose = re.sub(r"<(pre|code)>.*?</\1>", "", answer.text, flags=re.DOTALL)
    assert not re.search(r"```|\]\(|\*\*|^#|^\|", prose, re.MULTILINE)


async def test_what_is_no_page_is_not_found(anyone: Client) -> None:
    for name in ("none", "../app", "..%2fapp.py", "tutorial.md", "how-to", "how-to/", "%00"):
        assert (await anyone.get(GUIDE + name)).status == 404, name


async def test_the_guide_is_at_one_address(anyone: Client) -> None:
    answer = await anyone.get(GUIDE.rstrip("/"), allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (308, "guide/")


async def test_what_a_browser_has_already_is_not_sent_again(anyone: Client) -> None:
    first = await anyone.get(f"{GUIDE}tutorial")
    again = await anyone.get(f"{GUIDE}tutorial", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A `b`, c", '<h1 id="a-b-c">A <code>b</code>, c</h1>'),
        ("one\ntwo\n\nthree", "<p>one two</p>\n<p>three</p>"),
        ("<b> & `<i>`", "<p>&lt;b&gt; &amp; <code>&lt;i&gt;</code></p>"),
        ("**a `b`** [c](d.md)", '<p><strong>a <code>b</code></strong> <a href="d">c</a></p>'),
        ("[c](gone.py)", "<p>c</p>"),
        ("```sh\n# a <b>\n\n- c\n```\nd", "<pre><code># a &lt;b&gt;\n\n- c</code></pre>\n<p>d</p>"),
        ("- a\n  b\n- c\n\n  d\n\ne", "<ul>\n<li>a b</li>\n<li>c\n<p>d</p></li>\n</ul>\n<p>e</p>"),
        ("1. a\n   - b\n2. c", "<ol>\n<li>a\n<ul>\n<li>b</li>\n</ul></li>\n<li>c</li>\n</ol>"),
        (
            "| a | b |\n|---|---|\n| `c\\|d` | |",
            TABLE,
        ),
        ("<!-- a -->\nb", "<p>b</p>"),
        ("<https://a.example/b>", '<p><a href="https://a.example/b">https://a.example/b</a></p>'),
        ("[a](javascript:b)", "<p>a</p>"),
    ],
)
def test_what_the_pages_use_of_markdown_is_understood(text: str, html: str) -> None:
    def resolve(target: str) -> str | None:
        return target.removesuffix(".md") if target.endswith(".md") else None

    assert render(text, resolve) == html
