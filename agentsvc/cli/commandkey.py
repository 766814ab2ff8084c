"""The API key of commands that use a server on this machine; created if it is missing."""

from typing import Final

from agentsvc.accounts import KeyRing
from agentsvc.base import Secret, StartFailed, replace_private
from agentsvc.cli import CommandFailed
from agentsvc.cli.stored import run_on
from agentsvc.config import DataDirectory
from agentsvc.storage import Database

_FIRST_USER: Final = "admin"
_NAME: Final = "command line"
_HINT: Final = "pass a key with --key; create one with `agentsvc keys create --user NAME`"


def make_key(data_directory: DataDirectory) -> Secret:
    """Create a key of the only user, or of `admin`, and store it in the data directory.

    This grants nothing new: anyone who can write to that directory can create keys anyway.
    """
    key = run_on(data_directory, _make_key)
    try:
        replace_private(data_directory.command_key, f"{key.reveal()}\n")
    except OSError as exc:
        raise StartFailed(
            f"the key cannot be stored ({exc.strerror}): {data_directory.command_key}", hint=_HINT
        ) from exc
    return key


async def _make_key(database: Database) -> Secret:
    keys = KeyRing(database)
    names = await keys.list_users()
    name = names[0] if len(names) == 1 else _FIRST_USER
    user_id = await keys.find_user(name)
    if user_id is None:
        raise CommandFailed(f"there are {len(names)} users, and none is named `{name}`", _HINT)
    return (await keys.create_key(user_id, _NAME))[1]
