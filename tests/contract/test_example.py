"""The backend that authors begin with keeps the contract as it is."""

from agentsvc.testing import KitOptions, backend_contract
from agentsvc.testing.example import ExampleBackend, ExampleConfig

TestExample = backend_contract(ExampleBackend, ExampleConfig(), KitOptions(quiet_seconds=0.3))
