"""For tests: a fake backend, a scripted model, and the conformance kit for backends.

Public: plugin authors import from here; begin with `kit`. In the server only commands that check or
demonstrate something import it. Imports `plugin` and `base`.
"""

from agentsvc.testing.backend import FAKE_SPEC as FAKE_SPEC
from agentsvc.testing.backend import FakeBackend as FakeBackend
from agentsvc.testing.backend import FakeConfig as FakeConfig
from agentsvc.testing.backend import FakeWorld as FakeWorld
from agentsvc.testing.kit import CheckResult as CheckResult
from agentsvc.testing.kit import CheckStatus as CheckStatus
from agentsvc.testing.kit import backend_contract as backend_contract
from agentsvc.testing.kit import check_backend as check_backend
from agentsvc.testing.llm import MODEL as MODEL
from agentsvc.testing.llm import ScriptedModel as ScriptedModel
from agentsvc.testing.promises import CHECKS as CHECKS
from agentsvc.testing.rig import WORKLOAD as WORKLOAD
from agentsvc.testing.rig import KitOptions as KitOptions
