"""Public addresses of this machine itself: nothing is called there, by whichever way users have."""

import asyncio
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agentsvc.agentserver import safe_connector
from agentsvc.agentserver.safe_connector import AddressNotAllowed, Found, SafeConnector
from tests.plugin_loading import part

if TYPE_CHECKING:
    from webhooks.sender import Sender
else:
    Sender = part("webhooks.sender").Sender

_PUBLIC = ("93.184.215.77", "93.184.216.78", "2a00:1450::77")
_SCRIPT = """
ip link set lo up
ip address add 93.184.215.77/32 dev lo
ip address add 93.184.216.77/24 dev lo
ip address add 93.184.216.78/24 dev lo
ip address add 2a00:1450::77/128 dev lo nodad
exec "$@"
"""


@pytest.mark.parametrize("address", _PUBLIC)
async def test_nothing_is_called_at_an_address_of_this_machine(address: str) -> None:
    """In a network namespace with public addresses, such as a server on the internet has."""
    ran = await asyncio.to_thread(
        subprocess.run,
        [
            "unshare",
            "--map-root-user",
            "--net",
            "sh",
            "-ec",
            _SCRIPT,
            "sh",
            sys.executable,
            "-m",
            "tests.agentserver.own_address",
            address,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["called"] == 0, found
    shown = f"[{address}]" if ":" in address else address
    said = found["said"]
    assert "should be a public address" in said[f"webhook registered at {shown}"]
    assert said["webhook registered at public.example"] == "yes"
    assert said["webhook at public.example"] == ("the name leads to an address that is not public")
    for host in (shown, "public.example"):
        assert "sandboxes.model_hosts" in said[f"model at {host}"]
    assert "not at a public address" in said["git host"]


def names(**known: str) -> "Names":
    return Names({name.replace("_", "."): address for name, address in known.items()})


class Names:
    """Names as a resolver knows them."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known
        self.asked: list[str] = []

    def forget(self, host: str) -> None:
        del self._known[host]

    async def look_up(self, host: str, _port: int) -> Found:
        self.asked.append(host)
        if host not in self._known:
            raise socket.gaierror(f"not known: {host}")
        return [(int(socket.AF_INET), self._known[host])]


async def test_nothing_is_called_where_the_servers_own_name_leads() -> None:
    """Behind a router no interface has the address that the server's URL leads to."""
    known = names(
        agents_example="93.184.215.80", other_example="93.184.215.81", alias_example="93.184.215.80"
    )
    own = (
        "https://agents.example/path",
        "http://unknown.example:3000",
        "http://[2a00:1450::90]:80",
    )
    reach = SafeConnector(own=own, lookup=known.look_up)
    assert await reach.resolve("other.example", 443)
    assert known.asked == ["other.example", "agents.example", "unknown.example"]
    for host in ("agents.example", "alias.example", "93.184.215.80", "2a00:1450::90"):
        with pytest.raises(AddressNotAllowed):
            await reach.resolve(host, 443)
    assert known.asked.count("agents.example") == 2  # once for itself, once for who asks for it
    listed = SafeConnector(own=own, listed=["alias.example"], lookup=known.look_up)
    assert await listed.resolve("alias.example", 443)
    sender = Sender(time_limit=5, allows_private=False, most=2, own=own, lookup=known.look_up)
    try:
        outcome = await sender.send("https://alias.example/", b"{}", {})
    finally:
        await sender.close()
    assert outcome.reason == "the name leads to an address that is not public"


async def test_where_the_servers_own_name_led_is_known_while_no_resolver_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(safe_connector, "_OWN_SECONDS", 0.0)
    known = names(agents_example="93.184.215.80", other_example="93.184.215.81")
    reach = SafeConnector(own=["http://agents.example"], lookup=known.look_up)
    assert await reach.resolve("other.example", 443)
    known.forget("agents.example")
    with pytest.raises(AddressNotAllowed):
        await reach.resolve("93.184.215.80", 443)


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1"),  # noqa: S104  # not bound
        *("100.100.100.200", "168.63.129.16", "fd20:ce::254", "64:ff9b::a83f:8110"),
        *("127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1"),
        *("192.0.0.170", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255"),
        *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
        *(
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::a00:1",
            "::ffff:127.0.0.1",
            "::ffff:a9fe:a9fe",
        ),
        *("64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "64:ff9b:1:2::8.8.8.8"),
        *("100::1", "2001::1", "2001:0:7f00:1::", "2001:0:808:808::1", "2001:2::1", "2001:10::1"),
        *("2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::", "2002:a9fe:a9fe::1"),
        *("3fff::1", "5f00::1", "4000::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fe80::1"),
        *("febf::1", "fec0::1", "ff02::1", "ff0e::1", "2a00:1450::5efe:10.0.0.1"),
        *("2a00:1450::200:5efe:169.254.169.254", "fe80::5efe:8.8.8.8"),
    ],
)
async def test_no_special_address_is_called(address: str) -> None:
    async def look_up(_host: str, _port: int) -> Found:
        return [(0, "93.184.215.14"), (0, address)]

    reach = SafeConnector(lookup=look_up)
    for host in (address, "name.example"):
        with pytest.raises(AddressNotAllowed):
            await reach.resolve(host, 80)
    if address in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"):
        # Where clouds tell their machines their secrets: only by its very address.
        with pytest.raises(AddressNotAllowed):
            await SafeConnector(listed=["name.example"], lookup=look_up).resolve("name.example", 80)


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.32.0.1", "223.255.255.255"),
        *("2606:4700::1111", "2a00:1450::1", "2002:808:808::1", "64:ff9b::8.8.8.8"),
        *("2001:4860:4860::8888", "2a00:1450::5efe:8.8.8.8", "::ffff:8.8.8.8"),
    ],
)
async def test_addresses_of_the_internet_are_called(address: str) -> None:
    assert await SafeConnector().resolve(address, 80)
