"""`agentsvc systemd`: prints a systemd unit for the server."""

import getpass
import json
import shlex
import sys
from typing import Final

import click

from agentsvc.base import MAX_OPEN_FILES
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import ConfigOptions, data_dir_of, example, where_options

_UNIT: Final = """\
[Unit]
Description=agentsvc, conversations of software agents
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
User={user}
Restart=on-failure
RestartSec=2
WatchdogSec=60
# The first start of a new release may copy and change a large database.
TimeoutStartSec=infinity
TimeoutStopSec=60
# Sandboxes keep running when the server stops or is updated.
KillMode=process
# A first key of your choice, as a credential that is not in the environment:
#LoadCredential=bootstrap-key:/etc/agentsvc/bootstrap-key
#Environment=AGENTSVC_BOOTSTRAP_KEY_FILE=%d/bootstrap-key
# Limits of sandboxes are cgroups below the server's own.
Delegate=yes
LimitNOFILE={open_files}
UMask=0077
ReadWritePaths={data_dir}
NoNewPrivileges=yes
ProtectSystem=full
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
# Not set, because bubblewrap fails with any of them: PrivateUsers, RestrictNamespaces,
# ProtectProc, ProtectControlGroups, ProtectKernelTunables, PrivateTmp, SystemCallFilter.

[Install]
WantedBy=multi-user.target
"""


@click.command(
    "systemd",
    epilog=example(
        "agentsvc systemd --data-dir /srv/agents | sudo tee /etc/systemd/system/agentsvc.service",
        "sudo systemctl daemon-reload && sudo systemctl enable --now agentsvc",
    ),
)
@click.option("--user", metavar="NAME", help="User the server runs as; default: you.")
@where_options
def command(user: str | None, where: ConfigOptions) -> None:
    """Print a systemd unit that reports when the server is ready, and restarts it if it hangs.

    `systemctl reload agentsvc` reloads the configuration.
    """
    loaded = where.load()
    directory = str(data_dir_of(loaded).path.absolute())
    parts = [sys.executable, "-m", "agentsvc", "serve", "--data-dir", directory]
    if loaded.path is not None:
        parts += ["--config", str(loaded.path.absolute())]
    program, *arguments = map(_quoted, parts)
    unit = _UNIT.format(
        # systemd expands variables in arguments, but not in the program's path.
        command=" ".join((program, *(one.replace("$", "$$") for one in arguments))),
        user=user or _own_name(),
        # With a leading dash it need not exist before the first start.
        data_dir=_quoted(f"-{directory}"),
        open_files=MAX_OPEN_FILES,
    )
    click.echo(unit, nl=False)


def _quoted(text: str) -> str:
    """Quote a word for a unit file: C escapes, and percent signs doubled."""
    is_plain = shlex.quote(text) == text
    return (text if is_plain else json.dumps(text, ensure_ascii=False)).replace("%", "%%")


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as exc:
        raise CommandFailed("the current user has no name", "pass one with --user") from exc
