"""Runs the command line: `python -m agentsvc` and the `agentsvc` script."""

import atexit
import importlib
import os
import signal
import sys
from types import FrameType

from agentsvc.startup_secrets import take_secrets

_signals: list[int] = []
"""The signals that have terminated this command."""


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    _open_streams()
    is_server = sys.argv[1:2] == ["serve"]
    if not is_server:
        _clean_up_on_signals()
    # The environment of a server is visible to its sandboxes. Before the imports, because it may re-execute.
    secrets = take_secrets(os.environ) if is_server else {}
    importlib.import_module("agentsvc.cli").cli(prog_name="agentsvc", obj=secrets)


def _open_streams() -> None:
    """Replace standard streams that were closed, such as by `>&-`, by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _clean_up_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that commands clean up."""
    # Exit functions run in reverse order, so this one runs last.
    atexit.register(_raise_signals)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Ignored if the command was started by `nohup`.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit_on_signal)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    # Ignore a second signal, so that the clean-up is not interrupted.
    if not _signals:
        _signals.append(number)
        raise SystemExit(128 + number)


def _raise_signals() -> None:
    """Terminate by the signal itself, which systemd counts as success, unlike any exit code but 0."""
    for number in _signals:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


if __name__ == "__main__":
    main()
