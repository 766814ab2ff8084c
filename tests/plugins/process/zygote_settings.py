"""What `zygote_probe` imports: it reads the environment and the home once and for all, as many do."""

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path

KEPT = Path.home() / "kept"
TEXT = f"{Path.home()}/text"
GENERATOR = random.random
COUNTS_EARLY = os.environ.get("PROBE_COUNTS_EARLY", "")
os.environ.setdefault("PROBE_DEFAULT", "of the program")
os.environ["PROBE_OWN"] = "of the program"
OWN = os.environ["PROBE_DEFAULT"], os.environ["PROBE_OWN"]
SEEN = set(os.environ)
NAMES: list[str] = []

logging.basicConfig(format="%(process)d %(message)s")


def _make() -> Callable[[], str]:
    inner = f"{Path.home()}/closure"
    return lambda: inner


closure = _make()
