"""What the look for known vulnerabilities compares, where the list of them is out of reach."""

from tests.audit import installed, older
from tests.lock import read_lock


def test_what_is_installed_is_in_the_lock_with_the_packages_of_the_agent() -> None:
    found = installed()
    assert {"aiohttp", "cryptography", "openhands-agent-server", "litellm", "mcp"} <= found.keys()
    assert older(found, {entry.name: entry.version for entry in read_lock().values()}) == []


def test_an_older_version_and_an_unknown_package_are_found() -> None:
    floor = {"a": "1.10.0", "b": "2.0", "c": "1.0"}
    found = {"a": "1.9.9", "b": "2.0.1", "d": "1"}
    assert older(found, floor) == ["a 1.9.9: the lock has 1.10.0", "d 1: the lock has none"]
