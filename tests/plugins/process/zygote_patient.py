"""A program that is loaded only once somebody waits for it, and then waits itself."""

import importlib
import signal
from typing import Final

READ_AGAIN: Final = ()


def load() -> None:
    """Wait until somebody does."""
    importlib.import_module("tests.plugins.process.zygote_awaited")


def set_up() -> None:
    """Do nothing."""


if __name__ == "__main__":
    signal.pause()
