"""Commands against what answers in another form than a server of this version."""

import json
import re
import socket

import click
import pytest
from click.testing import CliRunner

from agentsvc.base.values import new_id
from agentsvc.cli import cli
from agentsvc.cli.server import ServerChoice, get_api, server_options
from tests.cli.test_doctor import answering

ID = new_id()
COMMANDS = (
    "conversations list",
    f"conversations show {ID}",
    "sandboxes list",
    "sandboxes logs a",
    "status",
    "settings set llm_model a/b",
    "secrets list",
    "run work",
    "chat work",
    "attempts list",
    "attempts start work --wait",
    "automations list",
    "automations create --name a --prompt b",
    "environments create --name a --wait",
    f"share add {ID}",
    "sign-in invite ann",
)


@pytest.mark.parametrize(
    "answer", ["{}", "[]", "null", "", "[{}]", '{"items":[{}]}', '{"items":3}']
)
def test_an_answer_of_another_form_is_told_in_one_line(answer: str) -> None:
    sent = f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}".encode()
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, sent):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for words in COMMANDS:
            arguments = [*words.split(), "--url", url, "--key", "key"]
            result = CliRunner().invoke(cli, arguments)
            assert result.exit_code == 1, words
            assert re.match("(ready\n)?error: .*\nhint: .*\n", result.stderr), words


OFFER = {
    "verification_uri_complete": "https://agents.example.org/oauth/device/verify?user_code=A",
    "user_code": "A",
    "device_code": "B",
    "interval": 0,
    "expires_in": 0,
}


@pytest.mark.parametrize(
    "offer",
    [
        {},
        {**OFFER, "interval": "5"},
        {**OFFER, "interval": -1},
        {**OFFER, "expires_in": 10**9},
        {**OFFER, "user_code": "A\x1b[2J"},
        {**OFFER, "verification_uri_complete": "file:///etc/passwd"},
        {**OFFER, "verification_uri_complete": "/usr/share/applications/a.desktop"},
    ],
)
def test_who_logs_in_by_a_browser_is_told_what_is_no_server(
    offer: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(click, "launch", opened.append)
    sent = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(offer).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, sent):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["login", url])
    assert (result.exit_code, "is not an agentsvc server" in result.stderr) == (1, True)
    assert opened == []


def test_what_a_server_does_not_have_may_be_switched_off() -> None:
    sent = b'HTTP/1.1 404 Not Found\r\n\r\n{"detail":"Not Found"}'
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, sent):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["share", "list", "--url", url, "--key", "key"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: Not Found\nhint: it does not exist, or the server's conf"
    )


def test_what_a_server_has_and_this_one_is_not_comes_without_that_hint() -> None:
    sent = b'HTTP/1.1 404 Not Found\r\n\r\n{"detail":"There is no link x"}'
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, sent):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["share", "revoke", "x", "--url", url, "--key", "key"])
    assert (result.exit_code, result.stderr) == (1, "error: There is no link x\n")


@pytest.mark.parametrize("asks", [False, True])
def test_a_mistake_of_a_command_is_no_answer_of_a_server(asks: bool) -> None:
    @click.command()
    @server_options
    def wrong(server: ServerChoice) -> None:
        if asks:
            get_api(server).call("GET", "/x")
        raise KeyError("mistake")

    sent = b"HTTP/1.1 200 OK\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, sent):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(wrong, ["--url", url, "--key", "key"])
    if asks:
        assert "KeyError: 'mistake'" in result.stderr
        assert "report this as a bug" in result.stderr
    else:
        assert isinstance(result.exception, KeyError)
