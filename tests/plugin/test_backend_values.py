"""The pure parts of the contract and of the process backend."""

import signal

import pytest
from process.inspection import describe_exit
from process.specs import current, passed_port

from agentsvc.base.errors import OrderRejected
from agentsvc.plugin.backend import fill


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--port={port.agent}", "--port=41233"),
        ("{port.agent}:{port.worker_1}", "41233:8011"),
        ("{port.}{PORT.agent}{agent}", "{port.}{PORT.agent}{agent}"),
        ("", ""),
    ],
)
def test_ports_are_filled_in_and_nothing_else(text: str, filled: str) -> None:
    assert fill(text, {"agent": 41233, "worker_1": 8011}) == filled


def test_what_agent_servers_import_first_is_known_by_its_old_name() -> None:
    options = ("--port", "{port.agent}", "--import-modules")
    old = ("{python}", *options, "mine,agentsvc.backends.guest")
    assert current(old) == ("{python}", *options, "mine,agentsvc.guest")
    assert passed_port(old) == "agent"


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OrderRejected, match=r"`\{port.vscode\}` names a port"):
        fill("{port.vscode}", {"agent": 1})


@pytest.mark.parametrize(
    ("code", "reason", "last_line", "said"),
    [
        (1, "", "no module", "the command exited with code 1: no module"),
        (0, "", "", "the command exited with code 0"),
        (128 + signal.SIGSEGV, "", "", "the command was ended by SIGSEGV"),
        (137, "", "at 3", "the command was ended by SIGKILL: its last line was: at 3"),
        (255, "", "", "the command was ended by 127"),
        (None, "a port cannot be had", "", "a port cannot be had"),
    ],
)
def test_how_a_command_ended_is_said_in_one_line(
    code: int | None, reason: str, last_line: str, said: str
) -> None:
    assert describe_exit(code, reason, last_line) == said
