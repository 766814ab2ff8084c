"""What the fork server loads ahead for the kit's workload; the standard library alone."""

import importlib.util
from pathlib import Path

import agentsvc

_PATH = Path(agentsvc.__file__).parent / "testing" / "workload.py"
_SPEC = importlib.util.spec_from_file_location("workload", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
workload = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(workload)

READ_AGAIN = ()


def load() -> None:
    """All is loaded already."""


def set_up() -> None:
    """Nothing is to be set up."""
