"""Registry of the conformance kit's checks."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from agentsvc.plugin import Capability
from agentsvc.testing.rig import Backend, KitOptions, Rig

type Body = Callable[[Rig], Awaitable[None]]
type SkipReason = Callable[[type[Backend], KitOptions], str]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the contract and its check."""

    name: str
    body: Body
    why_skipped: SkipReason
    """Returns why the check is skipped for a backend, or ""."""


CHECKS: Final[list[Check]] = []
"""All checks, in the order of the contract."""


def _always(_kind: type[Backend], _options: KitOptions) -> str:
    return ""


def check(why_skipped: SkipReason = _always) -> Callable[[Body], Body]:
    """Register a function as a check."""

    def enter(body: Body) -> Body:
        CHECKS.append(Check(name=body.__name__, body=body, why_skipped=why_skipped))
        return body

    return enter


def needs(capability: Capability) -> SkipReason:
    """Skip a check for backends that do not declare the capability."""

    def why(kind: type[Backend], _options: KitOptions) -> str:
        return "" if capability in kind.capabilities else f"it does not declare {capability}"

    return why
