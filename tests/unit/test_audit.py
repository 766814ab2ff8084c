"""What the look for known holes compares, where the list of them is out of reach."""

from pathlib import Path

from tests.audit import installed, older, read_lock


def test_what_the_server_runs_on_is_recorded() -> None:
    found = installed()
    assert {"aiohttp", "cryptography", "msgspec", "multidict"} <= found.keys()
    assert found.keys() & {"pytest", "mypy", "openhands-sdk"} == set()
    assert older(found, read_lock()) == []


def test_an_older_version_and_an_unknown_package_are_found(tmp_path: Path) -> None:
    file = tmp_path / "lock.txt"
    file.write_text("# why\na==1.10.0\nb==2.0\nc==1.0  # of a\n")
    lock = read_lock(file)
    assert lock == {"a": "1.10.0", "b": "2.0", "c": "1.0"}
    found = {"a": "1.9.9", "b": "2.0.1", "d": "1"}
    assert older(found, lock) == [
        "a 1.9.9: 1.10.0 is recorded",
        "d 1: nothing is recorded",
    ]
