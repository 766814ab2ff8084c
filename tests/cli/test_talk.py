"""Following a conversation from the command line."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from agentsvc.base.values import Secret, new_id
from agentsvc.cli import CommandFailed, cli
from agentsvc.cli.client import Api, RequestRefused, StreamBroken, StreamMessage
from agentsvc.cli.talk import EventStream, agent_path, wake
from tests.cli.test_doctor import answering


class RestoredServer(Api):
    """A server that was put back to 50 events, for a client that has read 100."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", Secret("key"))
        self.asked: list[int] = []

    def stream(self, path: str, *, after: int, beats: bool = False) -> Iterator[StreamMessage]:
        del path, beats
        self.asked.append(after)
        if after > 50:
            yield StreamMessage(type="resync", id=50, data={"last_event_id": 50})
        else:
            yield StreamMessage(type="event", id=after + 1, data={})


def test_events_go_on_where_a_server_is_that_was_restored_from_a_backup() -> None:
    server = RestoredServer()
    events = EventStream(server, cast("dict[str, Any]", {"id": new_id()}))
    events.last = 100
    assert [one.type for one in events.read()] == ["resync"]
    assert [one.type for one in events.read()] == ["event"]
    assert server.asked == [100, 50]
    assert events.last == 51


def test_a_conversation_whose_sandbox_is_gone_can_be_forked() -> None:
    gone = {"id": "c1", "sandbox_id": "", "sandbox_status": "MISSING", "conversation_url": None}
    with pytest.raises(CommandFailed) as raised:
        agent_path(gone)
    with pytest.raises(CommandFailed) as woken:
        wake(Api("http://127.0.0.1:1", Secret("key")), gone)
    for error in (raised.value, woken.value):
        assert error.hint == "continue in a new one with `agentsvc conversations fork c1`"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", StreamBroken),
        (b"HTTP/1.1 503 No\r\n\r\n", StreamBroken),
        (b"HTTP/1.1 404 No\r\n\r\n", RequestRefused),
        (b"HTTP/1.1 200 OK\r\n\r\nevent: event\nid: x\ndata: {}\n\n", CommandFailed),
        (b"HTTP/1.1 200 OK\r\n\r\nevent: event\ndata: {\n\n", CommandFailed),
        (b"HTTP/1.1 200 OK\r\n\r\nevent: event\ndata: []\n\n", CommandFailed),
    ],
)
def test_a_stream_that_breaks_is_told_from_what_is_none(
    answer: bytes, error: type[CommandFailed]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        api = Api(f"http://127.0.0.1:{listener.getsockname()[1]}", Secret("key"))
        with answering(listener, answer), pytest.raises(CommandFailed) as raised:
            list(EventStream(api, {"id": new_id()}).read())
    assert raised.type is error


def ask(url: str, *arguments: str, key: str = "key") -> Result:
    return CliRunner().invoke(cli, [*arguments, "--url", url, "--key", key])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"200 OK\r\n\r\n<html>", " is not an agentsvc server\nhint: check that it runs, and"),
        (b"200 OK\r\n\r\n\xff", " is not an agentsvc server\n"),
        (b"200 OK\r\n\r\n" + b"[" * 100_000, " is not an agentsvc server\n"),
        (b"200 OK\r\n\r\n{}", " is not an agentsvc server\n"),
        (b"200 OK\r\n\r\n[]", " is not an agentsvc server\n"),
        (b"200 OK\r\nContent-Length: 9\r\n\r\n{", ": IncompleteRead(1 bytes read, 8 "),
        (b"502 Bad\r\nContent-Length: 9\r\n\r\n{", ": IncompleteRead(1 bytes read, 8 "),
        (
            b"301 Moved\r\nLocation: https://a.example/api\r\n\r\n",
            "and no reason\nhint: it redirects to https://a.example/api; check that --url is",
        ),
        (
            b'422 No\r\n\r\n{"detail":[1]}',
            "error: the server responded with status 422 and no reason",
        ),
        (
            b'422 No\r\n\r\n{"detail":[{"loc":1}]}',
            "error: the server responded with status 422 and no",
        ),
        (b"500 No\r\n\r\n" + b"[" * 100_000, "error: the server responded with status 500 and no"),
    ],
)
def test_what_is_no_answer_of_a_server_is_told_in_one_line(answer: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with answering(listener, b"HTTP/1.1 " + answer):
            result = ask(url, "conversations", "list")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert told in result.stderr


@pytest.mark.parametrize("answer", [b"{}", b"[]"])
def test_nobody_is_logged_in_at_what_is_no_server(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with answering(listener, b"HTTP/1.1 200 OK\r\n\r\n" + answer):
            result = CliRunner().invoke(cli, ["login", url, "--key", "key"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: the server at {url} is not an agentsvc server\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["", "-"])
def test_an_empty_key_does_not_ask_for_a_browser(key: str) -> None:
    result = CliRunner().invoke(cli, ["login", "http://127.0.0.1:1", "--key", key], input="\n")
    assert (result.exit_code, result.stderr[:24]) == (1, "error: the key is empty\n")


@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://a:99999", "http://a:b", "http://a:0"),
        *("http://127.0.0.1:1?a=b", "http://127.0.0.1:1#f"),
    ],
)
def test_what_is_no_url_is_told(url: str) -> None:
    result = ask(url, "status")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: `{url}` is not a server URL\n")


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    result = ask("http://me:hunter2@127.0.0.1:1", "status")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the URL must not contain a user name or password\n")
    assert "hunter2" not in result.output


def test_what_is_no_url_is_told_before_its_key_is_missed(tmp_path: Path) -> None:
    nobody = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": None, "AGENTSVC_API_KEY": None}
    result = CliRunner(env=nobody | {"AGENTSVC_URL": "foo"}).invoke(
        cli, ["status", "--data-dir", str(tmp_path)]
    )
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        1,
        "error: `foo` is not a server URL",
    )


def test_no_server_is_denied_where_nobody_can_look(tmp_path: Path) -> None:
    there = str(tmp_path / ("a" * 300))
    result = CliRunner(env={"HOME": str(tmp_path)}).invoke(cli, ["status", "--data-dir", there])
    assert result.exit_code == 1
    assert result.stderr == f"error: File name too long: {there}/url\n"


def test_a_host_with_a_name_that_none_can_have_is_told() -> None:
    assert ask("http://a..b", "status").stderr.startswith("error: no response from http://a..b")


@pytest.mark.parametrize("key", ["oh-\u20ac", "oh-\n1"])
def test_what_cannot_be_a_key_is_told_and_not_shown(key: str) -> None:
    result = ask("http://127.0.0.1:1", "status", key=key)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the key contains invalid characters\nhint: ")
