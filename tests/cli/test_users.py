"""`agentsvc users`, and what `agentsvc keys` says of scopes and expiry."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.base.errors import NotAuthenticated
from agentsvc.base.values import now
from agentsvc.cli import cli
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.archives import Archive
from agentsvc.conversations.archives.table import insert_archive
from agentsvc.storage.database import Database
from tests.accounts.identities import identify


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    places.database.touch()
    return places.path


def run(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--data-dir", str(data_dir)])


def key_of(data_dir: Path, user: str, *arguments: str) -> str:
    made = run(data_dir, "keys", "create", "--output", "-", "--user", user, *arguments)
    assert made.exit_code == 0, made.stderr
    return made.stdout.strip()


def test_a_user_is_made_given_another_role_and_name_and_listed(data_dir: Path) -> None:
    run(data_dir, "users", "create", "boss", "--role", "admin")
    made = run(data_dir, "users", "create", "ann", "--role", "viewer")
    assert (made.exit_code, made.stdout) == (0, "")
    assert made.stderr == "user `ann` created with role viewer\n"
    key = key_of(data_dir, "ann")
    assert identify(data_dir, key).role is Role.VIEWER

    changed = run(data_dir, "users", "set", "ann", "--role", "member", "--name", "anna")
    assert (changed.exit_code, changed.stderr) == (0, "user `anna` is member\n")
    caller = identify(data_dir, key)
    assert (caller.user_name, caller.role) == ("anna", Role.MEMBER)
    head, *rows = run(data_dir, "users", "list").stdout.splitlines()
    assert head.split()[:3] == ["ID", "NAME", "ROLE"]
    assert [row.split()[1:3] for row in rows] == [["anna", "member"], ["boss", "admin"]]


def test_a_blocked_user_is_not_let_in_until_unblocked(data_dir: Path) -> None:
    key = key_of(data_dir, "ann")
    assert run(data_dir, "users", "block", "ann").stderr == "user `ann` is blocked\n"
    with pytest.raises(NotAuthenticated):
        identify(data_dir, key)
    assert " blocked 2" in run(data_dir, "users", "list").stdout
    assert run(data_dir, "users", "unblock", "ann").stderr == "user `ann` is unblocked\n"
    assert identify(data_dir, key).user_name == "ann"


def test_a_user_is_deleted_with_the_keys_and_the_name_is_free_again(data_dir: Path) -> None:
    key = key_of(data_dir, "ann")
    asked = run(data_dir, "users", "delete", "ann")
    assert (asked.exit_code, "confirm with --yes" in asked.stderr) == (1, True)
    deleted = run(data_dir, "users", "delete", "ann", "--yes")
    assert (deleted.exit_code, deleted.stderr) == (0, "user `ann` is deleted\n")
    with pytest.raises(NotAuthenticated):
        identify(data_dir, key)
    assert run(data_dir, "users", "list").stdout.count("\n") == 1
    assert run(data_dir, "users", "create", "ann").exit_code == 0


def test_a_user_who_owns_something_waits_for_a_server_to_remove_it(data_dir: Path) -> None:
    key = key_of(data_dir, "ann")
    own_an_archive(data_dir, identify(data_dir, key).user_id)
    refused = run(data_dir, "users", "delete", "ann", "--yes")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: `ann` owns 1 archive: delete that first, or all")
    asked = run(data_dir, "users", "delete", "ann", "--with-owned", "--yes")
    assert asked.stderr.startswith("user `ann` is blocked, and will be deleted after 1 archive\n")
    assert "being deleted" in run(data_dir, "users", "show", "ann").stdout
    let_in = run(data_dir, "users", "unblock", "ann")
    assert (let_in.exit_code, "is being deleted" in let_in.stderr) == (1, True)


def own_an_archive(data_dir: Path, user_id: str) -> None:
    archive = Archive(
        user_id=user_id,
        conversation_id="0" * 32,
        title="",
        sandbox_id="0" * 32,
        working_dir="/workspace",
        directory="",
        releases=False,
    )

    async def body() -> None:
        database = await Database.open(DataDirectory(path=data_dir).database)
        try:
            await database.write(lambda tx: insert_archive(tx, archive))
        finally:
            await database.close()

    asyncio.run(body())


REFUSALS = [
    (["create", "boss"], "a user of this name exists already: boss"),
    (["create", "a\tb"], "a name has 1 to 100 printable characters"),
    (["block", "nobody"], "there is no user `nobody`"),
    (["set", "ann", "--name", "boss"], "a user of this name exists already: boss"),
    (["set", "boss", "--role", "viewer"], "`boss` is the only administrator, and has to stay"),
    (["delete", "nobody", "--yes"], "there is no user `nobody`"),
    (["delete", "boss", "--yes"], "`boss` is the only administrator, and has to stay one"),
    (["set", "ann", "--name", ""], "a name has 1 to 100 printable characters"),
    (["block", "boss"], "`boss` is the only administrator, and has to stay one"),
]


def test_what_cannot_be_done_is_said_and_changes_nothing(data_dir: Path) -> None:
    run(data_dir, "users", "create", "boss", "--role", "admin")
    run(data_dir, "users", "create", "ann")
    before = run(data_dir, "users", "list").stdout
    for arguments, error in REFUSALS:
        refused = run(data_dir, "users", *arguments)
        assert refused.exit_code == 1, arguments
        assert refused.stderr.startswith(f"error: {error}")
    assert run(data_dir, "users", "list").stdout == before


def test_an_administrator_who_is_not_the_last_may_go(data_dir: Path) -> None:
    for name in ("ada", "bob"):
        run(data_dir, "users", "create", name, "--role", "admin")
    assert run(data_dir, "users", "block", "ada").exit_code == 0
    assert run(data_dir, "users", "set", "bob", "--role", "member").exit_code == 1


def test_a_key_may_be_for_less_and_for_some_days(data_dir: Path) -> None:
    key = key_of(data_dir, "ann", "--scope", "read", "--days", "3")
    assert identify(data_dir, key).scope is KeyScope.READ
    assert identify(data_dir, key_of(data_dir, "ann")).scope is KeyScope.ADMIN
    _, limited, free = run(data_dir, "keys", "list").stdout.splitlines()
    assert limited.split()[3:4] == ["read"]
    day = now() + timedelta(days=3)
    assert f"expires {day:%Y-%m-%d}" in limited
    assert f"{now():%Y-%m-%d}" in limited.split("…")[1]
    assert free.split()[3:4] == ["admin"]
    assert free.endswith("active")


def test_limits_are_set_shown_and_taken_away(data_dir: Path) -> None:
    run(data_dir, "users", "create", "ann")
    limits = ("--running-sandboxes", "2", "--spend-per-day", "1.5")
    assert run(data_dir, "users", "set", "ann", *limits).exit_code == 0
    assert run(data_dir, "users", "set", "ann", "--conversations-per-hour", "9").exit_code == 0
    shown = run(data_dir, "users", "show", "ann").stdout
    assert "at most 2\n" in shown
    assert "0 of 9\n" in shown
    assert "0.00 of 1.5\n" in shown
    assert "0.00 of any\n" in shown
    told = json.loads(run(data_dir, "users", "show", "ann", "--json").stdout)
    assert (told["name"], told["running sandboxes"]) == ("ann", "at most 2")
    assert run(data_dir, "users", "set", "ann", "--running-sandboxes", "none").exit_code == 0
    shown = run(data_dir, "users", "show", "ann").stdout
    assert "at most any\n" in shown
    assert "0.00 of 1.5\n" in shown


NO_LIMITS = [
    ("--running-sandboxes", "1.5"),
    ("--running-sandboxes", "-1"),
    ("--spend-per-day", "much"),
    ("--spend-per-month", "nan"),
    ("--conversations-per-hour", "1e300"),
]


def test_a_limit_that_is_no_number_is_wrong_usage(data_dir: Path) -> None:
    run(data_dir, "users", "create", "ann")
    for words in NO_LIMITS:
        refused = run(data_dir, "users", "set", "ann", *words)
        assert refused.exit_code == 2
        assert words[1] in refused.stderr


def test_what_commands_change_is_in_the_audit_log(data_dir: Path) -> None:
    run(data_dir, "users", "create", "ann")
    key_of(data_dir, "ann", "--name", "laptop")
    run(data_dir, "keys", "revoke", "1")
    run(data_dir, "keys", "revoke", "7")
    for verb in ("block", "unblock"):
        run(data_dir, "users", verb, "ann")
    run(data_dir, "users", "set", "ann", "--role", "viewer")
    run(data_dir, "users", "list")
    printed = run(data_dir, "audit")
    assert printed.exit_code == 0
    head, *rows = printed.stdout.splitlines()
    assert head.split() == ["AT", "(UTC)", "WHO", "KEY", "ACTION", "SUBJECT", "STATUS", "FROM"]
    assert [row.split("agentsvc ")[1].split() for row in rows] == [
        ["users", "set", "ann"],
        ["users", "unblock", "ann"],
        ["users", "block", "ann"],
        ["keys", "revoke", "1"],
        ["keys", "create", "user", "ann,", "laptop"],
        ["users", "create", "ann"],
    ]
    assert all("command line" in row for row in rows)
    assert len(run(data_dir, "audit", "--limit", "2").stdout.splitlines()) == 3
    assert len(run(data_dir, "audit", "--text", "KEYS create").stdout.splitlines()) == 2
    assert len(run(data_dir, "audit", "--refused").stdout.splitlines()) == 1
    assert len(run(data_dir, "audit", "--user", "ann").stdout.splitlines()) == 1
    assert run(data_dir, "audit", "--user", "eve").stderr == "error: there is no user `eve`\n"
