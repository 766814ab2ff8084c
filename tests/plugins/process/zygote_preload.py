"""Loads `zygote_probe` in a fork server, and sets it up in each fork."""

import importlib
import os
from typing import Final

from tests.plugins.process import zygote_settings

READ_AGAIN: Final = ("PROBE_AGAIN",)


def load() -> None:
    """Import what the program does, and more."""
    for name in ("http.server", "uuid", "ssl", "tests.plugins.process.zygote_later"):
        importlib.import_module(name)
    os.environ.get("PROBE_AGAIN_AND_AGAIN")


def set_up() -> None:
    """Note for whom it is."""
    zygote_settings.NAMES.append(os.environ["PROBE_NAME"])
