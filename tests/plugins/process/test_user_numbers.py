"""Numbers that sandboxes get: how they are written down, and who gets which."""

import os
import pwd
import subprocess

import msgspec
import pytest
from process import bubblewrap, users
from process.settings import ProcessConfig

from agentsvc.base.errors import CapacityExceeded


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", range(0)),
        ("7-7", range(7, 8)),
        ("1900000000-1900000009", range(1900000000, 1900000010)),
    ],
)
def test_a_range_of_numbers_is_read(text: str, numbers: range) -> None:
    assert users.parse(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "0-9",
        "9-8",
        "5",
        "-",
        "1-",
        "a-b",
        "1-2-3",
        " 1-2",
        "1-4294967294",
        "-5--1",
        "\uff11-\uff12",
    ],
)
def test_what_is_no_range_of_users_is_refused_by_name(text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="uids"):
        msgspec.convert({"uids": text}, ProcessConfig)


def test_each_gets_another_number_and_keeps_it_until_it_is_gone() -> None:
    there = users.Users(range(1900000000, 1900000004), {"old": 1900000002, "root": 0})
    taken = [there.assign(name, 0) for name in ("a", "b", "c")]
    assert sorted(taken) == [1900000000, 1900000001, 1900000003]
    assert there.assign("a", 0) == taken[0]
    assert there.assign("old", 1900000002) == 1900000002
    with pytest.raises(CapacityExceeded, match="uids"):
        there.assign("d", 0)
    there.release("b")
    there.release("b")
    assert there.assign("d", 0) == taken[1]


def test_one_that_is_somebody_from_another_range_stays_that() -> None:
    assert users.Users(range(5_000_000, 5_000_001)).assign("a", 1900000002) == 1900000002


def test_a_number_that_has_a_name_on_this_machine_is_nobody_elses() -> None:
    named = next(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid)
    with pytest.raises(CapacityExceeded):
        users.Users(range(named, named + 1)).assign("a", 0)


def test_a_number_that_runs_something_on_this_machine_is_nobody_elses() -> None:
    nobodys = next(
        number
        for number in range(1_800_000_000, 1_800_001_000)
        if users.Users(range(number, number + 1)).assign("a", 0)
    )
    if os.geteuid() != 0:
        pytest.skip("only root can run something for somebody else")
    sleeper = subprocess.Popen(["sleep", "60"], user=nobodys, group=nobodys, extra_groups=[])
    try:
        with pytest.raises(CapacityExceeded):
            users.Users(range(nobodys, nobodys + 1)).assign("a", 0)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_without_numbers_nobody_is_anybody_and_it_is_said_why() -> None:
    found = bubblewrap.Probe(program="/usr/bin/bwrap", shared="no namespaces")
    there = users.find("7-9", found, {"a": 8})
    assert not there
    assert there.assign("a", 8) == 0
    reason = "no namespaces" if os.geteuid() == 0 else "it is not root"
    assert there.describe() == f"the server's: {reason}"
