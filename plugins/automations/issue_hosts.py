"""The git hosts of automations, left alone for as long as they ask for it."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Final

from agentsvc.base import (
    AgentsvcError,
    AgentUnavailable,
    GitProviderRateLimited,
    GitProviderUnavailable,
    NotAllowed,
    NotAuthenticated,
    monotonic,
)
from agentsvc.extension.git import Checkout, GitProviders, ProviderToken

from .github_app import GithubApps
from .host_calls import HostCalls
from .model import Automation
from .service import provider_of

PASSING: Final = (GitProviderUnavailable, GitProviderRateLimited, AgentUnavailable)
"""What says nothing of a repository: it is tried again, for so long:"""
PATIENCE: Final = timedelta(hours=1)

_LEAST_REST: Final = 15.0
_GIT_SECONDS: Final = 300.0


class TokenRenewed(GitProviderUnavailable):
    """The token of a GitHub App was refused before its time: it is tried at once with another."""


class IssueHosts:
    """Opens the APIs of hosts, with the tokens of the users whose automations need them, or of their Apps."""

    def __init__(self, git: GitProviders, apps: GithubApps) -> None:
        self._git = git
        self._apps = apps
        self._rests: dict[tuple[str, str], tuple[float, AgentsvcError]] = {}

    @contextlib.asynccontextmanager
    async def calls(self, automation: Automation) -> AsyncIterator[HostCalls]:
        """Return the calls to the host of an automation; one that wants rest is not called."""
        provider = provider_of(automation.definition)
        key = (automation.user_id, provider.value)
        until, wanted = self._rests.get(key, (0.0, None))
        if wanted is not None and monotonic() < until:
            raise wanted
        repository = repository_of(automation)
        try:
            token = await self._apps.lend(automation.user_id, provider, repository)
            api = await self._git.api(automation.user_id, provider, token)
            with self._renewing(automation, token):
                yield HostCalls(api, provider, repository)
        except GitProviderRateLimited as exc:
            self._rests[key] = (monotonic() + wait_of(exc), exc)
            raise

    @contextlib.asynccontextmanager
    async def checkout(self, automation: Automation) -> AsyncIterator[Checkout]:
        """Return the repository of an automation, to fetch from and to push to."""
        async with self._git.checkout(
            automation.user_id,
            repository_of(automation),
            provider_of(automation.definition),
            time_limit=_GIT_SECONDS,
        ) as checkout:
            with self._renewing(automation, checkout.remote.token):
                yield checkout

    @contextlib.contextmanager
    def _renewing(self, automation: Automation, token: ProviderToken | None) -> Iterator[None]:
        try:
            yield
        except (NotAuthenticated, NotAllowed) as exc:
            if token and self._apps.renew(automation.user_id, repository_of(automation), token):
                raise TokenRenewed("The token of the GitHub App is renewed") from exc
            raise


def repository_of(automation: Automation) -> str:
    """Return the name of the repository of an automation."""
    return (automation.definition.repos or [])[0].url


def wait_of(exc: AgentsvcError) -> float:
    """Return how many seconds a host is left alone after an error."""
    if isinstance(exc, TokenRenewed):
        return 0.0
    return max(_LEAST_REST, getattr(exc, "retry_after_seconds", None) or 0.0)
