"""A program that is never loaded to its end."""

import importlib
import signal
from typing import Final

READ_AGAIN: Final = ()


def load() -> None:
    """Never return."""
    importlib.import_module("tests.plugins.process.zygote_looking")


def set_up() -> None:
    """Do nothing."""


if __name__ == "__main__":
    signal.pause()
