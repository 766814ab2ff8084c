"""The API key of commands that are called beside a server; made only where there is none yet."""

from typing import Final

from agentsvc.accounts import KeyRing
from agentsvc.base import Secret, StartFailed, replace_private
from agentsvc.cli import CommandFailed
from agentsvc.cli.stored import run_on
from agentsvc.config import DataDirectory
from agentsvc.storage import Database

_FIRST_USER: Final = "admin"
_NAME: Final = "command line"
_HINT: Final = "name a key with --key; `agentsvc keys create --user NAME` makes one"


def make_key(data_directory: DataDirectory) -> Secret:
    """Make a key of this machine's administrator, and keep it in the data directory.

    Who can read that directory can make keys anyway.
    """
    key = run_on(data_directory, _make_key)
    try:
        replace_private(data_directory.command_key, f"{key.reveal()}\n")
    except OSError as exc:
        raise StartFailed(
            f"the key cannot be kept ({exc.strerror}): {data_directory.command_key}", hint=_HINT
        ) from exc
    return key


async def _make_key(database: Database) -> Secret:
    keys = KeyRing(database)
    names = await keys.list_users()
    name = names[0] if len(names) == 1 else _FIRST_USER
    user_id = await keys.find_user(name)
    if user_id is None:
        raise CommandFailed(f"there are {len(names)} users, none of them is `{name}`", _HINT)
    return (await keys.create_key(user_id, _NAME))[1]
