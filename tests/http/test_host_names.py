"""Which names the server goes by."""

from typing import Any

import msgspec
import pytest

from agentsvc.config.schema import Config, GatewayConfig
from agentsvc.http.middleware.host_names import known_hosts


def known(host: str, /, *, sandbox_domain: str = "", **server: Any) -> bool:
    config = Config(gateway=GatewayConfig(sandbox_domain=sandbox_domain))
    section = msgspec.structs.replace(config.server, **server)
    config = msgspec.structs.replace(config, server=section)
    return known_hosts(config, machine="Box").knows(host)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:3000",
        "localhost.",
        "worker-1-0123456789abcdef0123456789abcdef.localhost:3000",
        "127.0.0.1:3000",
        "192.168.1.7",
        "[::1]:3000",
        "[fe80::1]",
        "box",
        "box.local:3000",
    ],
)
def test_this_machine_and_addresses_are_always_known(host: str) -> None:
    assert known(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evillocalhost",
        "evil",
        "127.0.0.1@evil.example",
        "127.1",
        "0x7f000001",
        "\xff",
    ],
)
def test_no_other_name_is_known(host: str) -> None:
    assert not known(host)


def test_a_name_is_known_by_the_configuration() -> None:
    host = "agents.example.org:443"
    assert not known(host)
    assert known(host, public_url="https://agents.example.org/below")
    assert known(host, internal_url="http://agents.example.org:3000")
    assert known(host, allowed_hosts=("Agents.example.org",))
    assert known(host, allowed_hosts=("*.example.org",))
    assert known(host, allowed_hosts=("*",))
    assert known(host, sandbox_domain="*.example.org")
    assert known(host, host="agents.example.org")
    assert not known("example.org", allowed_hosts=("*.example.org",))
    assert not known("evilexample.org", allowed_hosts=("*.example.org",))
