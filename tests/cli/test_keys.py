import asyncio
import contextlib
import os
import pty
import re
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentsvc.accounts.device_logins import Claim, DeviceLogin, DeviceLogins
from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base.errors import NotAuthenticated
from agentsvc.base.values import MAX_INT, now
from agentsvc.cli import cli
from agentsvc.config.data_directory import DataDirectory
from agentsvc.storage.database import Database
from tests.accounts.identities import identify


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    places.database.touch()
    return places.path


def call(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["keys", *arguments, "--data-dir", str(data_dir)])


def keys(data_dir: Path, *arguments: str) -> Result:
    """Call a command; a key that it makes goes to standard output."""
    made = ("--output", "-") if arguments[0] == "create" else ()
    return call(data_dir, *arguments, *made)


def test_a_new_key_is_all_there_is_on_stdout_and_opens_the_server(data_dir: Path) -> None:
    result = keys(data_dir, "create", "--user", "ann", "--role", "admin", "--name", "laptop")
    assert result.exit_code == 0
    caller = identify(data_dir, result.stdout.removesuffix("\n"))
    assert (caller.user_name, caller.role) == ("ann", Role.ADMIN)
    assert result.stderr == "key 1 of user `ann`, shown only this once:\n"


def test_where_there_is_no_terminal_a_key_goes_to_a_file_of_its_owner(data_dir: Path) -> None:
    result = call(data_dir, "create", "--user", "ann")
    file = Path(result.stdout.removesuffix("\n"))
    assert file.parent == data_dir
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = file.read_text().removesuffix("\n")
    assert identify(data_dir, key).user_name == "ann"
    assert key not in result.output
    assert "in a file that only its owner can read:\n" in result.stderr


def test_a_key_goes_to_a_file_that_is_named_and_to_none_that_is_there(data_dir: Path) -> None:
    file = data_dir.parent / "ann.key"
    assert call(data_dir, "create", "--user", "ann", "--output", str(file)).exit_code == 0
    identify(data_dir, file.read_text().strip())
    before = file.read_text()
    refused = call(data_dir, "create", "--user", "ann", "--output", str(file))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"error: the file cannot be created: File exists: {file}\n"
    assert file.read_text() == before
    link = data_dir.parent / "link"
    link.symlink_to(data_dir.parent / "elsewhere")
    assert call(data_dir, "create", "--user", "ann", "--output", str(link)).exit_code == 1
    assert not (data_dir.parent / "elsewhere").exists()
    # What could not be kept was not made.
    assert len(keys(data_dir, "list").stdout.splitlines()) == 2


def test_a_key_that_cannot_be_made_leaves_no_file(data_dir: Path) -> None:
    call(data_dir, "create", "--user", "ann", "--output", "-")
    before = sorted(data_dir.iterdir())
    assert call(data_dir, "create", "--user", "ann", "--role", "admin").exit_code == 1
    assert sorted(data_dir.iterdir()) == before


def test_a_key_that_cannot_be_made_leaves_no_user(data_dir: Path) -> None:
    assert keys(data_dir, "create", "--user", "ann", "--name", "").exit_code == 1
    # Of a user that is there already no role is given.
    assert keys(data_dir, "create", "--user", "ann", "--role", "admin").exit_code == 0


@pytest.mark.parametrize(
    ("taker", "reason"), [(">/dev/full", "No space left on device"), ("| true", "Broken pipe")]
)
def test_a_key_that_standard_output_does_not_take_is_in_a_file(
    data_dir: Path, taker: str, reason: str
) -> None:
    words = f"keys create --user ann --output - --data-dir {data_dir}"
    script = f"{sys.executable} -m agentsvc {words} {taker}; exit ${{PIPESTATUS[0]}}"
    # Written at once, there is nothing left to be written at the end.
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    made = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=buffered
    )
    [file] = data_dir.glob("key-*")
    assert (made.returncode, file.stat().st_mode & 0o777) == (1, 0o600)
    assert made.stderr.splitlines()[1:] == [
        f"error: standard output cannot be written ({reason}), it is in {file}"
    ]
    assert identify(data_dir, file.read_text().strip()).user_name == "ann"


def test_a_key_in_a_file_stays_there_where_standard_output_takes_nothing(data_dir: Path) -> None:
    file = data_dir.parent / "ann.key"
    words = ["keys", "create", "--user", "ann", "--output", str(file), "--data-dir", str(data_dir)]
    with Path("/dev/full").open("w") as full:
        made = subprocess.run([sys.executable, "-m", "agentsvc", *words], stdout=full, check=False)
    assert made.returncode == 1
    assert identify(data_dir, file.read_text().strip()).user_name == "ann"


def test_a_service_key_is_an_administrators_and_ends_with_what_it_has_made(
    data_dir: Path,
) -> None:
    order = ("create", "--name", "automations", "--scope", "service", "--user")
    assert "error: there is no user `ann`" in keys(data_dir, *order, "ann").stderr
    keys(data_dir, "create", "--user", "bob")
    refused = keys(data_dir, *order, "bob")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "can only be an administrator's" in refused.stderr
    made = keys(data_dir, *order, "ann", "--role", "admin")
    with pytest.raises(NotAuthenticated):
        identify(data_dir, made.stdout.strip())
    listed = keys(data_dir, "list").stdout
    assert re.search(r"^2 +ann +automations +service ", listed, re.MULTILINE)
    assert keys(data_dir, "revoke", "2").exit_code == 0
    assert " revoked " in keys(data_dir, "list").stdout


def test_a_key_is_shown_on_a_terminal(data_dir: Path) -> None:
    printed = on_terminal("keys", "create", "--user", "ann", "--data-dir", str(data_dir))
    found = re.search(r"^asvc_\S+", printed, re.MULTILINE)
    assert found is not None
    assert identify(data_dir, found.group()).user_name == "ann"
    assert not list(data_dir.glob("key-*"))


def on_terminal(*arguments: str) -> str:
    """Return what a command shows on a terminal of its own."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "agentsvc", *arguments], stdin=its, stdout=its, stderr=its
    ) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):
            # It ends with an error once nobody has the other side any more.
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        assert process.wait() == 0, shown
    return shown.decode().replace("\r\n", "\n")


def test_a_new_user_is_a_member_unless_said_otherwise(data_dir: Path) -> None:
    result = keys(data_dir, "create", "--user", "ann")
    assert (identify(data_dir, result.stdout.strip())).role is Role.MEMBER


def test_a_user_can_have_several_keys(data_dir: Path) -> None:
    made = [keys(data_dir, "create", "--user", "ann").stdout.strip() for _ in range(2)]
    callers = [identify(data_dir, key) for key in made]
    assert callers[0].user_id == callers[1].user_id
    assert made[0] != made[1]


def test_the_role_of_a_user_is_not_changed_by_the_way(data_dir: Path) -> None:
    keys(data_dir, "create", "--user", "ann")
    result = keys(data_dir, "create", "--user", "ann", "--role", "admin")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: user `ann` exists already\nhint: leave out --role\n"


def test_the_list_shows_what_a_key_begins_with_and_no_key(data_dir: Path) -> None:
    key = keys(data_dir, "create", "--user", "ann", "--name", "laptop").stdout.strip()
    result = keys(data_dir, "list")
    assert result.exit_code == 0
    head, row = result.stdout.splitlines()
    assert head.split()[:3] == ["ID", "USER", "NAME"]
    assert row.split()[:3] == ["1", "ann", "laptop"]
    assert row.endswith("active")
    assert key[:9] in row
    assert key not in row


def test_a_revoked_key_opens_nothing_and_stays_in_the_list(data_dir: Path) -> None:
    key = keys(data_dir, "create", "--user", "ann").stdout.strip()
    result = keys(data_dir, "revoke", "1")
    assert (result.exit_code, result.stderr) == (0, "key 1 is revoked\n")
    with pytest.raises(NotAuthenticated):
        identify(data_dir, key)
    assert "revoked" in keys(data_dir, "list").stdout


def test_a_key_that_is_not_there_cannot_be_revoked(data_dir: Path) -> None:
    result = keys(data_dir, "revoke", "7")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no key 7\nhint: ")


@pytest.mark.parametrize("arguments", [["keys", "revoke"], ["audit", "--limit"]])
def test_a_number_that_no_database_holds_is_wrong_usage(
    data_dir: Path, arguments: list[str]
) -> None:
    found = [
        CliRunner().invoke(cli, [*arguments, str(number), "--data-dir", str(data_dir)])
        for number in (MAX_INT - 1, MAX_INT + 1)
    ]
    assert all(one.exception is None or isinstance(one.exception, SystemExit) for one in found)
    assert [one.exit_code == 2 for one in found] == [False, True]


@pytest.mark.parametrize("arguments", [["keys", "create", "--user"], ["audit", "--text"]])
def test_a_text_that_no_database_holds_is_told(data_dir: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "a\udcff", "--data-dir", str(data_dir)])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: invalid text: ")


def begin_login(data_dir: Path) -> DeviceLogin:
    return asyncio.run(on_database(data_dir, lambda database: DeviceLogins(database).begin()))


def claim(data_dir: Path, login: DeviceLogin) -> Claim:
    return asyncio.run(
        on_database(data_dir, lambda database: DeviceLogins(database).claim(login.device_code))
    )


async def on_database[T](data_dir: Path, body: Callable[[Database], Awaitable[T]]) -> T:
    database = await Database.open(DataDirectory(path=data_dir).database)
    try:
        return await body(database)
    finally:
        await database.close()


def test_a_program_that_waits_is_let_in(data_dir: Path) -> None:
    keys(data_dir, "create", "--user", "ann")
    login = begin_login(data_dir)
    result = keys(data_dir, "approve", login.user_code)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "the program is logged in as `ann`\n"
    key = claim(data_dir, login).key
    assert key is not None
    assert identify(data_dir, key.reveal()).user_name == "ann"


def test_with_several_users_somebody_has_to_be_named(data_dir: Path) -> None:
    for name in ("ann", "bob"):
        keys(data_dir, "create", "--user", name)
    login = begin_login(data_dir)
    refused = keys(data_dir, "approve", login.user_code)
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error: there are 2 users\nhint: choose one with --user\n",
    )
    assert keys(data_dir, "approve", login.user_code, "--user", "bob").exit_code == 0


def test_a_code_nobody_waits_with_is_refused(data_dir: Path) -> None:
    keys(data_dir, "create", "--user", "ann")
    result = keys(data_dir, "approve", "ABCD-EFGH")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no login is pending with the code ABCD-EFGH\nhint: ")


def test_a_user_who_is_not_there_lets_nobody_in(data_dir: Path) -> None:
    result = keys(data_dir, "approve", "ABCD-EFGH", "--user", "eve")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (1, "error: there is no user `eve`")


@pytest.mark.parametrize(("days", "word"), [(1, "expires"), (-1, "expired")])
def test_the_list_says_when_a_key_expires(data_dir: Path, days: int, word: str) -> None:
    async def make(database: Database) -> None:
        ring = KeyRing(database)
        user_id = await ring.create_user("ann", Role.MEMBER)
        await ring.create_key(user_id, "laptop", expires_at=now() + timedelta(days=days))

    asyncio.run(on_database(data_dir, make))
    assert f" {word} 2" in keys(data_dir, "list").stdout


@pytest.mark.parametrize(
    "arguments", [["list"], ["create", "--user", "ann"], ["revoke", "1"], ["approve", "A"]]
)
def test_without_a_database_the_command_says_what_to_do(
    tmp_path: Path, arguments: list[str]
) -> None:
    result = keys(tmp_path / "empty", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: there is no database in {tmp_path / 'empty'}\nhint: ")
    assert not (tmp_path / "empty").exists()


def test_a_name_nobody_can_print_is_refused(data_dir: Path) -> None:
    result = keys(data_dir, "create", "--user", "a\tb")
    assert result.exit_code == 1
    assert result.stderr == "error: a name has 1 to 100 printable characters\n"
