"""Runs the command line: `python -m agentsvc` and the `agentsvc` script."""

import atexit
import importlib
import os
import signal
import sys
from types import FrameType

from agentsvc.startup_secrets import take_secrets

_told: list[int] = []
"""The signals that have ended this command."""


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    _open_streams()
    is_server = sys.argv[1:2] == ["serve"]
    if not is_server:
        _clean_up_on_signals()
    # A server is there to be seen by what it runs. This comes before the imports, which it repeats.
    secrets = take_secrets(os.environ) if is_server else {}
    importlib.import_module("agentsvc.cli").cli(prog_name="agentsvc", obj=secrets)


def _open_streams() -> None:
    """Have what was closed for this process, such as by `>&-`, read nothing and write to nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _clean_up_on_signals() -> None:
    """Have a command that is told to stop, or whose terminal is closed, remove what is half done."""
    # What is registered first is called last.
    atexit.register(_end)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` lets it go on.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    # It may come twice, and what is being removed then has to be removed to its end.
    if not _told:
        _told.append(number)
        raise SystemExit(128 + number)


def _end() -> None:
    """End by the signal after all: for systemd that is no failure, and each exit code but 0 is one."""
    for number in _told:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


if __name__ == "__main__":
    main()
