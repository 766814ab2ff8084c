"""The checks of the conformance kit: what every backend must do, one function a promise.

A check is an async function that gets a Rig and raises if the promise is broken. Its name is a
sentence that is true of a correct backend.
"""

from agentsvc.testing import lifecycle, refusals, sandbox_files
from agentsvc.testing.promises import CHECKS, Check

__all__ = ["CHECKS", "Check", "lifecycle", "refusals", "sandbox_files"]
