"""`agentsvc audit`: prints the audit log, also while the server runs."""

import click

from agentsvc.accounts import COMMAND_LINE, AuditLog, Entry, EntryQuery, Users
from agentsvc.base import MAX_INT
from agentsvc.cli.options import ConfigOptions, example, json_option, where_options
from agentsvc.cli.stored import run_on
from agentsvc.cli.text import print_table
from agentsvc.storage import Database

_TITLES = ("AT (UTC)", "WHO", "KEY", "ACTION", "SUBJECT", "STATUS", "FROM")


@click.command("audit", epilog=example("agentsvc audit --user ann --limit 20"))
@click.option("--user", metavar="NAME", help="Only entries of this user.")
@click.option("--text", metavar="TEXT", help="Only entries whose action or subject contains TEXT.")
@click.option("--refused", is_flag=True, help="Only requests that were answered with an error.")
@click.option("--limit", type=click.IntRange(1, MAX_INT - 1), default=50, help="Maximum number.")
@json_option
@where_options
def command(
    *,
    user: str | None,
    text: str | None,
    refused: bool,
    limit: int,
    as_json: bool,
    where: ConfigOptions,
) -> None:
    """Print the audit log: who changed what, with the response status, newest first.

    Rejected requests are included; requests that only read are not.
    """

    async def body(database: Database) -> list[Entry]:
        user_id = (await Users(database).get_named(user)).id if user is not None else None
        query = EntryQuery(user_id=user_id, text=text, is_refused=refused or None)
        return (await AuditLog(database).search(query, limit=limit))[0]

    rows = [_row(entry) for entry in run_on(where.data_directory(), body)]
    print_table(_TITLES, rows, as_json=as_json)


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        f"{entry.at:%Y-%m-%d %H:%M:%S}",
        entry.user_name or COMMAND_LINE,
        "" if entry.key_id is None else str(entry.key_id),
        entry.action,
        entry.subject,
        str(entry.status or ""),
        "" if entry.address == COMMAND_LINE else entry.address,
    )
