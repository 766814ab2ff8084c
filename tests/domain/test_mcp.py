from typing import Any

import pytest

from agentsvc.base.errors import InvalidRequest
from agentsvc.base.values import MASK, Secret
from agentsvc.domain.mcp import (
    McpConfig,
    ShttpServer,
    SseServer,
    StdioServer,
    read_mcp_config,
    restore_secrets,
    show_mcp_config,
)
from agentsvc.domain.mcp_map import to_agent

FULL = McpConfig(
    sse_servers=(
        SseServer(url="http://a.b/sse"),
        SseServer(url="http://c/sse", api_key=Secret("k")),
    ),
    stdio_servers=(
        StdioServer(
            name="f_1",
            command="npx",
            args=("-y", "a b"),
            env={"A": Secret("1"), "B": Secret("2")},
        ),
    ),
    shttp_servers=(ShttpServer(url="http://h/mcp", api_key=Secret("q"), timeout_seconds=5),),
)


def test_what_published_clients_send_is_read() -> None:
    config = read_mcp_config(
        {
            "sse_servers": ["http://a.b/sse", {"url": " http://c/sse ", "api_key": "k"}],
            "stdio_servers": [
                {"name": "f_1", "command": "npx", "args": '-y "a b"', "env": "A=1, B=2,"}
            ],
            "shttp_servers": [{"url": "http://h/mcp", "api_key": "q", "timeout": 5}],
        }
    )
    assert config == FULL


def test_lists_and_maps_are_taken_as_they_are() -> None:
    raw = {"name": "x", "command": "c", "args": ["a b", ""], "env": {"A": "1,B=2"}}
    config = read_mcp_config({"stdio_servers": [raw], "shttp_servers": ["wss://h/x"]})
    assert config.stdio_servers[0].args == ("a b", "")
    assert config.stdio_servers[0].env == {"A": Secret("1,B=2")}
    assert config.shttp_servers[0].timeout_seconds == 60


def test_what_is_left_out_has_its_default() -> None:
    assert read_mcp_config({}) == McpConfig()
    config = read_mcp_config(
        {
            "stdio_servers": [{"name": "x", "command": "c"}],
            "shttp_servers": [{"url": "http://h", "api_key": "", "timeout": None}],
        }
    )
    assert config.stdio_servers[0] == StdioServer(name="x", command="c")
    assert config.shttp_servers[0] == ShttpServer(url="http://h")


@pytest.mark.parametrize(
    ("raw", "loc", "message"),
    [
        (
            {"sse_servers": ["http://a", {"url": "nope"}]},
            ["sse_servers", 1, "url"],
            "URL must include a scheme (http:// or https://)",
        ),
        ({"sse_servers": ["ftp://a"]}, ["sse_servers", 0, "url"], "URL scheme must be"),
        ({"sse_servers": ["http:///x"]}, ["sse_servers", 0, "url"], "valid domain/host"),
        ({"sse_servers": [" "]}, ["sse_servers", 0, "url"], "URL cannot be empty"),
        ({"sse_servers": ["http://a b"]}, ["sse_servers", 0, "url"], "must not contain spaces"),
        ({"sse_servers": ["http://a\x01b"]}, ["sse_servers", 0, "url"], "control characters"),
        ({"sse_servers": ["http://a:x"]}, ["sse_servers", 0, "url"], "URL is not valid"),
        ({"sse_servers": ["http://a", "http://a"]}, ["sse_servers", 1, "url"], "the same url"),
        ({"shttp_servers": ["http://a", "http://a"]}, ["shttp_servers", 1, "url"], "the same url"),
        ({"sse_servers": [{}]}, ["sse_servers", 0, "url"], "Field required"),
        ({"sse_servers": [{"url": 1}]}, ["sse_servers", 0, "url"], "Expected `string`"),
        ({"sse_servers": [1]}, ["sse_servers", 0], "Expected `object`"),
        ({"sse_servers": {}}, ["sse_servers"], "Expected `array`"),
        (
            {"sse_servers": [{"url": "http://a", "timeout": 5}]},
            ["sse_servers", 0, "timeout"],
            "Extra inputs",
        ),
        (
            {"sse_servers": [{"url": "http://a", "api_key": "a\r\nb"}]},
            ["sse_servers", 0, "api_key"],
            "control characters",
        ),
        ({"servers": []}, ["servers"], "Extra inputs are not permitted"),
        ([], [], "Expected `object`"),
        (
            {"shttp_servers": [{"url": "http://a", "timeout": 0}]},
            ["shttp_servers", 0, "timeout"],
            "from 1 to 3600",
        ),
        (
            {"shttp_servers": [{"url": "http://a", "timeout": 3601}]},
            ["shttp_servers", 0, "timeout"],
            "from 1 to 3600",
        ),
        ({"stdio_servers": ["x"]}, ["stdio_servers", 0], "Expected `object`"),
        (
            {"stdio_servers": [{"name": "a b", "command": "c"}]},
            ["stdio_servers", 0, "name"],
            "letters, digits, `_` and `-`",
        ),
        (
            {"stdio_servers": [{"name": "a\n", "command": "c"}]},
            ["stdio_servers", 0, "name"],
            "letters, digits, `_` and `-`",
        ),
        ({"stdio_servers": [{"name": "a"}]}, ["stdio_servers", 0, "command"], "Field required"),
        (
            {"stdio_servers": [{"name": "a", "command": "npx -y"}]},
            ["stdio_servers", 0, "command"],
            "without spaces",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": " "}]},
            ["stdio_servers", 0, "command"],
            "cannot be empty",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "args": '"x'}]},
            ["stdio_servers", 0, "args"],
            "cannot be split",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "args": "a" * 4097}]},
            ["stdio_servers", 0, "args"],
            "4096",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "env": "A=1," * 1001}]},
            ["stdio_servers", 0, "env"],
            "At most 1000",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "args": ["\0"]}]},
            ["stdio_servers", 0, "args"],
            "NUL",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "args": [1]}]},
            ["stdio_servers", 0, "args", 0],
            "Expected `string`",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "env": "A"}]},
            ["stdio_servers", 0, "env"],
            "`A=1,B=2`",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "env": {"1A": "x"}}]},
            ["stdio_servers", 0, "env", "1A"],
            "Environment names",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c", "env": {"A": "x\0"}}]},
            ["stdio_servers", 0, "env", "A"],
            "NUL",
        ),
        (
            {"stdio_servers": [{"name": "a", "command": "c"}, {"name": "a", "command": "d"}]},
            ["stdio_servers", 1, "name"],
            "the same name",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(
    raw: Any, loc: list[str | int], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_mcp_config(raw)
    assert list(caught.value.loc) == ["body", "mcp_config", *loc]
    assert message in caught.value.message


def test_the_kind_of_refusal_is_the_published_one() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_mcp_config({"sse_servers": [{}]})
    assert caught.value.kind == "missing"
    with pytest.raises(InvalidRequest) as caught:
        read_mcp_config({"x": 1}, loc=("query",))
    assert (caught.value.kind, caught.value.loc) == ("extra_forbidden", ("query", "x"))


def test_secrets_are_shown_as_stars() -> None:
    assert show_mcp_config(FULL) == {
        "sse_servers": [
            {"url": "http://a.b/sse", "api_key": None},
            {"url": "http://c/sse", "api_key": MASK},
        ],
        "stdio_servers": [
            {
                "name": "f_1",
                "command": "npx",
                "args": ["-y", "a b"],
                "env": {"A": MASK, "B": MASK},
            }
        ],
        "shttp_servers": [{"url": "http://h/mcp", "api_key": MASK, "timeout": 5}],
    }


def test_stars_that_come_back_stand_for_the_stored_secrets() -> None:
    shown = read_mcp_config(show_mcp_config(FULL))
    assert shown != FULL
    assert restore_secrets(shown, FULL) == FULL


def test_a_changed_server_keeps_its_secret_by_url_or_name() -> None:
    shown = show_mcp_config(FULL)
    shown["shttp_servers"][0]["timeout"] = 9
    shown["stdio_servers"][0] |= {"command": "uvx", "env": {"B": MASK, "C": "new"}}
    shown["sse_servers"].reverse()
    restored = restore_secrets(read_mcp_config(shown), FULL)
    assert restored.shttp_servers[0].api_key == Secret("q")
    assert restored.stdio_servers[0].env == {"B": Secret("2"), "C": Secret("new")}
    assert restored.sse_servers[0] == SseServer(url="http://c/sse", api_key=Secret("k"))


@pytest.mark.parametrize(
    ("raw", "loc"),
    [
        ({"sse_servers": [{"url": "http://x", "api_key": MASK}]}, ["sse_servers", 0, "api_key"]),
        (
            # The URL is known, but among the servers of the other kind.
            {"shttp_servers": [{"url": "http://c/sse", "api_key": MASK}]},
            ["shttp_servers", 0, "api_key"],
        ),
        (
            {"sse_servers": [{"url": "http://a.b/sse", "api_key": MASK}]},
            ["sse_servers", 0, "api_key"],
        ),
        (
            {"stdio_servers": [{"name": "f_1", "command": "c", "env": {"Z": MASK}}]},
            ["stdio_servers", 0, "env", "Z"],
        ),
    ],
)
@pytest.mark.parametrize("stored", [FULL, None])
def test_stars_that_stand_for_nothing_are_refused(
    raw: Any, loc: list[str | int], stored: McpConfig | None
) -> None:
    with pytest.raises(InvalidRequest, match="none is stored") as caught:
        restore_secrets(read_mcp_config(raw), stored)
    assert list(caught.value.loc) == ["body", "mcp_config", *loc]


def test_the_agent_server_gets_a_map_with_the_secrets() -> None:
    assert to_agent(FULL) == {
        "f_1": {"command": "npx", "args": ["-y", "a b"], "env": {"A": "1", "B": "2"}},
        "sse_0": {"url": "http://a.b/sse", "transport": "sse"},
        "sse_1": {
            "url": "http://c/sse",
            "transport": "sse",
            "headers": {"Authorization": "Bearer k"},
        },
        "shttp_0": {
            "url": "http://h/mcp",
            "transport": "streamable-http",
            "headers": {"Authorization": "Bearer q"},
            "timeout": 5,
        },
    }


def test_a_process_named_like_a_remote_server_hides_none() -> None:
    config = McpConfig(
        sse_servers=(SseServer(url="http://a"),),
        stdio_servers=(StdioServer(name="sse_0", command="c"),),
    )
    assert set(to_agent(config)) == {"sse_0", "sse_0_"}


def test_a_config_shows_no_secret_when_printed() -> None:
    assert "Secret('**********')" in repr(FULL)
    assert "'q'" not in repr(FULL)
