"""Patterns of allow_hosts: what each means, and which are refused."""

import asyncio
import ipaddress
import json

import pytest

from agentsvc.plugin.egress import Resolver, from_json, parse_policy
from agentsvc.plugin.egress.addresses import BadHost, is_own, is_public, parse_host


@pytest.mark.parametrize(
    ("pattern", "destination", "is_allowed"),
    [
        ("pypi.org", "pypi.org:443", True),
        ("pypi.org", "pypi.org:80", True),
        ("pypi.org", "PyPI.org.:443", True),
        ("PyPI.org.", "pypi.org:443", True),
        ("pypi.org", "pypi.org:22", False),
        ("pypi.org", "test.pypi.org:443", False),
        ("pypi.org:22", "pypi.org:22", True),
        ("pypi.org:22", "pypi.org:443", False),
        ("*.example.org", "a.example.org:443", True),
        ("*.example.org", "a.b.example.org:443", True),
        ("*.example.org", "example.org:443", False),
        ("*.example.org", "aexample.org:443", False),
        ("*.example.org:8443", "a.example.org:8443", True),
        ("bücher.example", "xn--bcher-kva.example:443", True),
        ("10.0.0.5", "10.0.0.5:443", True),
        ("10.0.0.5", "167772165:443", True),
        ("10.0.0.5", f"{'0' * 300}12.0.0.5:443", True),
        ("10.0.0.5", "[::ffff:10.0.0.5]:443", True),
        ("10.0.0.5", "10.0.0.6:443", False),
        ("10.0.0.0/8", "10.9.8.7:80", True),
        ("10.0.0.0/8:5432", "10.9.8.7:5432", True),
        ("10.0.0.0/8:5432", "10.9.8.7:80", False),
        ("[fd00::1]:8080", "[fd00:0::1]:8080", True),
        ("fd00::/8", "[fd12::1]:443", True),
        ("fd00::1", "[fd00::1]:443", True),
        ("1.1.1.1", "1.1.1.1:443", True),
        ("1.1.1.0/24", "1.1.2.1:443", False),
    ],
)
def test_a_pattern_allows_what_it_says(pattern: str, destination: str, is_allowed: bool) -> None:
    policy = parse_policy("allowlist", [pattern])
    text, _, port = destination.rpartition(":")
    host = parse_host(text)
    reason = policy.refuse_host(host, int(port))
    if not isinstance(host, str):
        reason = reason or policy.refuse_address(host, int(port), host)
    assert (not reason) is is_allowed


@pytest.mark.parametrize(
    "pattern",
    ["", "*", "*.org", "*.", "a.*.org", "http://pypi.org", "pypi.org/", "pypi.org:0", "pypi.org:x",
     "pypi.org:70000", "10.0.0.0/33", "10.0.0.1/8", "[::1", "*.10.0.0.1", "a b", "fe80::1%eth0"],
)  # fmt: skip
def test_a_pattern_that_cannot_be_meant_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(BadHost) as raised:
        parse_policy("allowlist", [pattern])
    assert str(raised.value).startswith(f"`{pattern}` cannot be allowed: ")


@pytest.mark.parametrize("text", ["\ufdfa" * 10_000, "\ufdfa" * 250])
def test_a_text_too_long_for_a_name_is_refused_before_it_is_encoded(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("encodings.idna.ToASCII", done.append)
    with pytest.raises(BadHost):
        parse_host(text)
    assert not done


def test_a_name_that_leads_to_a_private_address_needs_that_address_listed() -> None:
    inner = ipaddress.ip_address("10.0.0.5")
    by_name = parse_policy("allowlist", ["git.corp.example"])
    by_both = parse_policy("allowlist", ["git.corp.example", "10.0.0.0/24"])
    assert "add `10.0.0.5`" in by_name.refuse_address("git.corp.example", 443, inner)
    assert by_both.refuse_address("git.corp.example", 443, inner) == ""


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "2606:4700::1111", "2002:101:101::1", "64:ff9b::101:101"]
)
def test_addresses_of_the_internet_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_a_document_says_the_same_as_the_arguments() -> None:
    policy = parse_policy(
        "allowlist", ["pypi.org", "10.0.0.0/8:1"], [("Localhost", 3000)], [("Model.Example", 1)]
    )
    document = {
        "mode": "allowlist",
        "allow_hosts": ["pypi.org", "10.0.0.0/8:1"],
        "needed": [["Localhost", 3000]],
        "models": [["Model.Example", 1]],
    }
    assert from_json(json.dumps(document)) == policy


@pytest.mark.parametrize("mode", ["none", "allowlist", "open"])
@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.5", "fd00::1", "169.254.169.254", "::ffff:192.168.0.1"]
)
def test_a_users_model_is_reached_at_its_port_and_at_public_addresses_only(
    mode: str, address: str
) -> None:
    inner, public = ipaddress.ip_address(address), ipaddress.ip_address("1.1.1.1")
    models = [("model.example", 8080), (address, 8080)]
    policy = parse_policy(mode, models=models)
    for host in ("model.example", inner):
        assert policy.refuse_host(host, 8080) == ""
        assert "`sandboxes.model_hosts`" in policy.refuse_address(host, 8080, inner)
    assert policy.refuse_address("model.example", 8080, public) == ""
    if mode != "open":
        assert policy.refuse_host("model.example", 8081)
    # What the operator knows may be there.
    listed = parse_policy(mode, needed=models)
    is_link_local = address.startswith("169.254")
    assert bool(listed.refuse_address("model.example", 8080, inner)) == is_link_local


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254"])
def test_what_is_needed_is_never_at_a_link_local_address_unless_that_is_listed(
    address: str,
) -> None:
    at, local = ipaddress.ip_address(address), ipaddress.ip_address("127.0.0.1")
    needed = [("model.example", 80), (address, 80)]
    policy = parse_policy("none", needed=needed)
    assert policy.refuse_address("model.example", 80, local) == ""
    for host in ("model.example", at):
        assert "not a public address" in policy.refuse_address(host, 80, at)
        listed = parse_policy("allowlist", [address], needed)
        assert listed.refuse_address(host, 80, at) == ""


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"mode": "some"}', '{"mode": "none", "needed": [1]}']
)
def test_a_document_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_json(text)


def test_the_addresses_of_this_machine_are_known() -> None:
    for own in ("127.0.0.1", "127.0.1.1", "0.0.0.0", "::1"):  # noqa: S104  # not bound
        assert is_own(ipaddress.ip_address(own))
    assert not is_own(ipaddress.ip_address("224.0.0.1"))
    assert not is_own(ipaddress.ip_address("198.51.100.77"))
    assert not is_own(ipaddress.ip_address("2001:db8::77"))


async def test_names_are_looked_up_in_threads_of_their_own() -> None:
    resolver, slots = Resolver(), asyncio.Semaphore()
    assert ipaddress.ip_address("127.0.0.1") in await resolver.resolve("localhost", slots)
    with pytest.raises(OSError, match=r".+"):
        await resolver.resolve("no-such-host.invalid", slots)
    resolver.close()
