"""Tool servers as one map: read, shown, and kept whole between the two forms."""

import json
from typing import Any

import pytest

from agentsvc.base.errors import InvalidRequest
from agentsvc.base.values import MASK, Secret
from agentsvc.domain.mcp import (
    McpConfig,
    ShttpServer,
    SseServer,
    StdioServer,
    ToolServerExtras,
    read_mcp_config,
    restore_secrets,
    show_mcp_config,
)
from agentsvc.domain.mcp_map import read_mcp_map, show_mcp_map, to_agent

LOC = ("body", "mcp_config")
MAP: dict[str, Any] = {
    "files": {"command": "npx", "args": ["-y", "a b"], "env": {"A": "1"}, "cwd": "/srv"},
    "events": {
        "url": "http://a/sse",
        "transport": "sse",
        "headers": {"authorization": "Bearer k", "X-Team": "t"},
        "sse_read_timeout": 30,
    },
    "search": {"url": "http://h/mcp", "auth": {"strategy": "bearer", "value": "q"}, "timeout": 4.5},
    "off": {"url": "http://off/mcp", "enabled": False, "description": "later"},
}


def read(raw: Any) -> McpConfig:
    config = read_mcp_map(raw, loc=LOC)
    assert config is not None
    return config


def test_a_map_becomes_the_three_lists() -> None:
    config = read(MAP)
    assert config.stdio_servers == (
        StdioServer(
            name="files",
            command="npx",
            args=("-y", "a b"),
            env={"A": Secret("1")},
            extras=ToolServerExtras(cwd="/srv"),
        ),
    )
    assert config.sse_servers == (
        SseServer(
            url="http://a/sse",
            api_key=Secret("k"),
            extras=ToolServerExtras(
                name="events", headers={"X-Team": Secret("t")}, sse_read_timeout_seconds=30
            ),
        ),
    )
    assert config.shttp_servers == (
        ShttpServer(
            url="http://h/mcp",
            api_key=Secret("q"),
            timeout_seconds=5,
            extras=ToolServerExtras(name="search"),
        ),
        ShttpServer(
            url="http://off/mcp",
            extras=ToolServerExtras(name="off", enabled=False, description="later"),
        ),
    )


def test_the_agent_gets_what_the_map_says_under_its_names() -> None:
    assert to_agent(read(MAP)) == {
        "files": {"command": "npx", "args": ["-y", "a b"], "env": {"A": "1"}, "cwd": "/srv"},
        "events": {
            "url": "http://a/sse",
            "transport": "sse",
            "headers": {"Authorization": "Bearer k", "X-Team": "t"},
            "sse_read_timeout": 30,
        },
        "search": {
            "url": "http://h/mcp",
            "transport": "streamable-http",
            "headers": {"Authorization": "Bearer q"},
            "timeout": 5,
        },
    }


def test_posting_back_the_map_that_was_read_keeps_every_secret() -> None:
    stored = read(MAP)
    shown = json.loads(json.dumps(show_mcp_map(stored)))
    assert to_agent(restore_secrets(read(shown), stored)) == to_agent(stored)
    assert show_mcp_map(restore_secrets(read(shown), stored)) == shown


def test_posting_back_the_lists_keeps_what_only_the_map_can_say() -> None:
    stored = read(MAP)
    shown = json.loads(json.dumps(show_mcp_config(stored)))
    assert restore_secrets(read_mcp_config(shown), stored) == stored


def test_the_map_shows_no_secret_unless_it_is_to_be_seen() -> None:
    stored = read(MAP)
    shown = show_mcp_map(stored)
    assert shown["events"]["headers"] == {"Authorization": MASK, "X-Team": MASK}
    assert shown["files"]["env"] == {"A": MASK}
    revealed = show_mcp_map(stored, is_revealed=True)
    assert revealed["events"]["headers"] == {"Authorization": "Bearer k", "X-Team": "t"}
    assert revealed["files"]["env"] == {"A": "1"}


def test_servers_of_the_lists_are_named_by_kind_and_place() -> None:
    config = McpConfig(
        sse_servers=(SseServer(url="http://a"), SseServer(url="http://b")),
        stdio_servers=(StdioServer(name="sse_0", command="c"),),
        shttp_servers=(ShttpServer(url="http://c"),),
    )
    assert list(show_mcp_map(config)) == ["sse_0", "sse_0_", "sse_1", "shttp_0"]


@pytest.mark.parametrize("raw", [None, {}])
def test_nothing_is_no_servers(raw: Any) -> None:
    assert read_mcp_map(raw, loc=LOC) is None
    assert show_mcp_map(None) == {}


def test_a_map_may_be_wrapped_and_may_be_the_lists() -> None:
    assert read({"mcpServers": MAP}) == read(MAP)
    assert read({"sse_servers": ["http://a"]}) == read_mcp_config({"sse_servers": ["http://a"]})


def test_a_server_may_have_the_name_of_a_list() -> None:
    assert list(show_mcp_map(read({"sse_servers": {"url": "http://a"}}))) == ["sse_servers"]


@pytest.mark.parametrize(
    ("auth", "headers"),
    [
        ({"strategy": "none"}, {}),
        ({"strategy": "none", "value": "left over"}, {}),
        ("token-1", {"Authorization": "Bearer token-1"}),
        ({"strategy": "bearer", "value": "b"}, {"Authorization": "Bearer b"}),
        ({"strategy": "bearer"}, {}),
        ({"strategy": "api_key", "value": "a"}, {"Authorization": "Bearer a"}),
        ({"strategy": "api_key", "value": "a", "header_name": "X-Key"}, {"X-Key": "a"}),
        (
            {"strategy": "basic", "username": "u", "password": "p"},
            {"Authorization": "Basic dTpw"},
        ),
        ({"strategy": "header", "headers": {"X-A": "1"}}, {"X-A": "1"}),
    ],
)
def test_every_way_to_authenticate_is_headers(auth: Any, headers: dict[str, str]) -> None:
    [server] = to_agent(read({"s": {"url": "http://a", "auth": auth}})).values()
    assert server.get("headers", {}) == headers


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        ({"auth": "t"}, {"auth": {"strategy": "bearer", "value": MASK}}),
        ({"auth": "t"}, {"headers": {"Authorization": f"Bearer {MASK}"}}),
        (
            {"auth": {"strategy": "basic", "username": "u", "password": "p"}},
            {"auth": {"strategy": "basic", "username": "u", "password": MASK}},
        ),
        ({"headers": {"X-A": "1"}}, {"headers": {"X-A": MASK}}),
    ],
)
def test_stars_stand_for_the_stored_secret(stored: dict[str, Any], sent: dict[str, Any]) -> None:
    before = read({"s": {"url": "http://a", **stored}})
    after = restore_secrets(read({"s": {"url": "http://a", **sent}}), before)
    assert to_agent(after) == to_agent(before)


def test_stars_that_stand_for_nothing_are_refused() -> None:
    config = read({"s": {"url": "http://a", "headers": {"X-A": MASK}}})
    with pytest.raises(InvalidRequest, match="none is stored"):
        restore_secrets(config, read(MAP))


@pytest.mark.parametrize(
    ("raw", "loc"),
    [
        ([], ()),
        ("x", ()),
        ({"mcpServers": []}, ("mcpServers",)),
        ({str(number): {"url": f"http://{number}"} for number in range(101)}, ()),
        ({"a\nb": {"url": "http://a"}}, ("a\nb",)),
        ({"a": 1}, ("a",)),
        ({"a": {}}, ("a",)),
        ({"a": {"url": "http://a", "transport": "stdio"}}, ("a",)),
        ({"a": {"command": "c", "transport": "sse"}}, ("a",)),
        ({"a": {"url": "nope"}}, ("a", "url")),
        ({"a": {"command": "a b"}}, ("a", "command")),
        ({"a b": {"command": "c"}}, ("a b",)),
        ({"a": {"command": "c", "env": {"1": "x"}}}, ("a", "env", "1")),
        ({"a": {"url": "http://a", "timeout": 0}}, ("a", "timeout")),
        ({"a": {"url": "http://a", "headers": {"a b": "c"}}}, ("a", "headers", "a b")),
        ({"a": {"url": "http://a", "headers": {"A": "b\nc"}}}, ("a", "headers", "A")),
        ({"a": {"url": "http://a", "auth": "oauth"}}, ("a", "auth")),
        ({"a": {"url": "http://a", "auth": {"strategy": "x"}}}, ("a", "auth", "strategy")),
        ({"a": {"url": "http://a"}, "b": {"url": "http://a"}}, ("b", "url")),
        ({"mcpServers": {"x": {"command": 5}}}, ("mcpServers", "x", "command")),
    ],
)
def test_what_is_no_server_is_refused_at_its_place(raw: Any, loc: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_mcp_map(raw, loc=LOC)
    assert caught.value.loc == (*LOC, *loc)
