"""The patterns of URLs: what is checked, and what the description says."""

import re

import pytest

from agentsvc.base import InvalidRequest
from agentsvc.base.urls import CLONE_URL, GIT_HOST, HTTP_URL, TOOL_SERVER_URL, WEBHOOK_URL
from agentsvc.domain import check_host
from agentsvc.http.openapi.schemas import to_ecma


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:11434/v1",
        "HTTPS://api.example.com./v1?a=b#c",
        "http://user:pass@proxy.example:65535/",
        "http://127.0.0.1:1",
        "http://[::1]:8080/v1",
        "http://[2606:2800:220:1::1]",
        "http://[1:2:3:4:5:6:7:8]/",
    ],
)
def test_a_url_of_http_with_a_host_may_be_that_of_a_model(url: str) -> None:
    assert re.fullmatch(HTTP_URL, url)
    assert re.fullmatch(TOOL_SERVER_URL, url)
    assert re.fullmatch(TOOL_SERVER_URL, url.lower().replace("http", "ws", 1))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "localhost:11434",
            "ftp://a/",
            "http://",
            "http:///v1",
            "http://a:0",
            "http://a:65536",
        ),
        *(
            "http://a b/",
            "http://a/\n",
            "http://[:]/",
            "http://[1::2::3]/",
            "http://..",
            "http://-a",
        ),
        *("http://[1:2:3:4:5:6:7:8:9]/", "http://b\u00fccher.example/"),
    ],
)
def test_nothing_else_may(url: str) -> None:
    for pattern in (HTTP_URL, TOOL_SERVER_URL, WEBHOOK_URL, CLONE_URL):
        assert not re.fullmatch(pattern, url)


def test_a_webhook_has_no_user_and_no_fragment_and_a_clone_has_a_path() -> None:
    assert re.fullmatch(WEBHOOK_URL, "https://receiver.example:8443/hook?a=b")
    assert not re.fullmatch(WEBHOOK_URL, "https://ann:pw@receiver.example/")
    assert not re.fullmatch(WEBHOOK_URL, "https://receiver.example/#part")
    assert re.fullmatch(CLONE_URL, "https://git.example/a/b.git")
    assert not re.fullmatch(CLONE_URL, "https://git.example")


@pytest.mark.parametrize(
    "host",
    [
        "git.example",
        "git.example:3000",
        "[::1]:3000/git/",
        "http://git.example",
        "https://git.example/a",
    ],
)
def test_a_git_host_is_a_name_or_a_url(host: str) -> None:
    assert re.fullmatch(GIT_HOST, host)
    assert check_host(host)


@pytest.mark.parametrize(
    "host",
    ["git example", "ftp://git.example", "git.example/?a", "git.example/#a", "a@git.example"],
)
def test_nothing_else_is_a_git_host(host: str) -> None:
    assert not re.fullmatch(GIT_HOST, host)
    with pytest.raises(InvalidRequest):
        check_host(host)


def test_a_long_text_is_refused_at_once() -> None:
    for text in ("http://" + "a-" * 2000, "http://" + "a." * 2000 + ".", "http://[" + "1:" * 2000):
        assert not re.fullmatch(HTTP_URL, text)


def test_the_patterns_are_ones_of_javascript_too() -> None:
    assert to_ecma(HTTP_URL).startswith("(?:[Hh][Tt][Tt][Pp][Ss]?)://")
