"""The address that a server takes, and the URLs that follow from it."""

import re
import socket
from pathlib import Path

import pytest

from agentsvc.base.errors import StartFailed
from agentsvc.cli.listener import bind
from agentsvc.cli.serve import with_addresses
from agentsvc.config.schema import Config, ServerConfig


def settled(config: Config, host: str) -> ServerConfig:
    with bind(host, 0) as listener:
        return with_addresses(config, listener).server


def test_the_urls_follow_from_the_address_that_was_bound() -> None:
    server = settled(Config(), "127.0.0.1")
    assert server.port > 0
    assert server.internal_url == f"http://127.0.0.1:{server.port}"
    # Clients may come by any name: each request says by which.
    assert server.public_url == ""


def test_every_address_is_reached_through_loopback() -> None:
    assert settled(Config(), "0.0.0.0").internal_url.startswith("http://127.0.0.1:")  # noqa: S104


def test_urls_that_are_configured_stay_as_they_are() -> None:
    given = ServerConfig(public_url="https://agents.example", internal_url="http://10.0.0.1:80")
    server = settled(Config(server=given), "127.0.0.1")
    assert (server.public_url, server.internal_url) == (given.public_url, given.internal_url)


def test_a_name_is_bound_at_its_ipv4_address() -> None:
    with bind("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="there is no IPv6 here")
def test_an_ipv6_address_stands_in_brackets() -> None:
    assert re.fullmatch(r"http://\[::1\]:\d+", settled(Config(), "::1").internal_url)


@pytest.mark.parametrize("host", ["203.0.113.7", "a..b"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(StartFailed, match=r"is not an address of this machine") as caught:
        bind(host, 0)
    assert caught.value.hint


def test_an_address_of_a_kind_that_the_kernel_has_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = (99, socket.SOCK_STREAM, 0, "", ("::1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kw: [unknown])
    with pytest.raises(StartFailed, match="cannot listen on ::1:0"):
        bind("::1", 0)
