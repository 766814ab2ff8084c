"""The conformance kit: tests that a backend keeps the contract, by pytest or from the shell.

In a plugin's tests it takes one line:

    TestFirecracker = backend_contract(FirecrackerBackend, FirecrackerConfig(kernel="vmlinux"))

The checks are in `agentsvc.testing.checks`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.rig import Backend, KitOptions, open_rig


class CheckStatus(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a check, its outcome and, unless it passed, the reason."""

    name: str
    outcome: CheckStatus
    reason: str = ""


def backend_contract(
    kind: type[Backend],
    config: msgspec.Struct,
    options: KitOptions | None = None,
    *,
    expect_failures: Mapping[str, str] | None = None,
) -> type:
    """Return a test class with a test for every promise of the contract.

    The tests are ordinary sync functions, each with its own event loop, so that no pytest plugin
    is needed. `expect_failures` maps names of checks to the reasons why they fail; such a check
    fails the test if it passes, so that the list stays correct.
    """
    known = {check.name for check in CHECKS}
    failures = dict(expect_failures or {})
    if unknown := failures.keys() - known:
        raise ValueError(f"no such check: {', '.join(sorted(unknown))}")
    tests = {
        f"test_{check.name}": _to_test(
            check, kind, config, options or KitOptions(), failures.get(check.name)
        )
        for check in CHECKS
    }
    return type(f"Test{kind.__name__}Contract", (), tests)


async def run_check(
    check: Check, kind: type[Backend], config: msgspec.Struct, options: KitOptions
) -> None:
    """Run one check; raises its errors."""
    async with asyncio.timeout(options.time_limit), open_rig(kind, config, options) as rig:
        await check.body(rig)


async def check_backend(
    kind: type[Backend],
    config: msgspec.Struct,
    options: KitOptions | None = None,
    *,
    only: Collection[str] = (),
) -> AsyncIterator[CheckResult]:
    """Run all checks, or those in `only`, without pytest; yield each result as soon as it is known."""
    options = options or KitOptions()
    for check in CHECKS:
        if only and check.name not in only:
            continue
        reason = check.why_skipped(kind, options)
        outcome = CheckStatus.SKIPPED if reason else CheckStatus.PASSED
        if not reason:
            try:
                await run_check(check, kind, config, options)
            except Exception as exc:  # noqa: BLE001  # whatever a backend raises is the result
                outcome, reason = CheckStatus.FAILED, f"{type(exc).__name__}: {exc}"
        yield CheckResult(name=check.name, outcome=outcome, reason=reason)


def _to_test(
    check: Check,
    kind: type[Backend],
    config: msgspec.Struct,
    options: KitOptions,
    expected_failure: str | None,
) -> Callable[[Any], None]:
    # The server itself must not require pytest.
    import pytest  # noqa: PLC0415

    def test(_self: Any) -> None:
        asyncio.run(run_check(check, kind, config, options))

    test.__name__ = f"test_{check.name}"
    test.__doc__ = check.body.__doc__
    reason = check.why_skipped(kind, options)
    marked: Callable[[Any], None] = test
    if reason:
        marked = pytest.mark.skip(reason=reason)(test)
    elif expected_failure is not None:
        marked = pytest.mark.xfail(reason=expected_failure, strict=True)(test)
    return marked
