"""For tests: a fake backend, a fake agent, a scripted model, and the conformance kit for backends.

Public: plugin authors import from here; begin with `kit`. Nothing in the server imports it but commands
that check or show something. Imports `plugin`, `agentserver` and `base`.
"""

from agentsvc.testing.backend import FAKE_SPEC, FakeBackend, FakeConfig, FakeWorld
from agentsvc.testing.kit import CheckResult, Outcome, backend_contract, check_backend
from agentsvc.testing.llm import MODEL, ScriptedModel
from agentsvc.testing.promises import CHECKS
from agentsvc.testing.rig import WORKLOAD, KitOptions

__all__ = [
    "CHECKS",
    "FAKE_SPEC",
    "MODEL",
    "WORKLOAD",
    "CheckResult",
    "FakeBackend",
    "FakeConfig",
    "FakeWorld",
    "KitOptions",
    "Outcome",
    "ScriptedModel",
    "backend_contract",
    "check_backend",
]
