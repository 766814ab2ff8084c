"""The checks of the conformance kit: one function for each promise of the contract.

A check is an async function that gets a Rig and raises if the backend breaks the promise. Its name is
a sentence that is true of a correct backend.
"""

from agentsvc.testing import lifecycle, refusals, sandbox_files
from agentsvc.testing.promises import CHECKS, Check

__all__ = ["CHECKS", "Check", "lifecycle", "refusals", "sandbox_files"]
