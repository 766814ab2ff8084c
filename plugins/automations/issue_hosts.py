"""Access to the git hosts of automations; it waits out their rate limits."""

import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

from agentsvc.base import (
    AgentsvcError,
    AgentUnavailable,
    GitProviderRateLimited,
    GitProviderUnavailable,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    monotonic,
)
from agentsvc.extension.conversations import check_repository
from agentsvc.extension.git import Checkout, GitProviders, ProviderToken
from agentsvc.extension.storage import Database

from .github_app import GithubApps
from .host_calls import HostCalls
from .model import Automation
from .service import rename

log = logging.getLogger(__name__)

TRANSIENT: Final = (GitProviderUnavailable, GitProviderRateLimited, AgentUnavailable)
"""Errors that are not about the repository: the call is retried, for at most `RETRIED_FOR`."""
RETRIED_FOR: Final = timedelta(hours=1)

_MIN_RETRY_SECONDS: Final = 15.0
_GIT_SECONDS: Final = 300.0


class TokenRenewed(GitProviderUnavailable):
    """The token of a GitHub App was refused before it expired; retry at once with a new one."""


class RepositoryRenamed(GitProviderUnavailable):
    """The repository was renamed, and the new name is stored; retry at once with it."""


class IssueHosts:
    """Opens the APIs of hosts with the tokens of the automations' users, or of their Apps."""

    def __init__(self, db: Database, git: GitProviders, apps: GithubApps) -> None:
        self._db = db
        self._git = git
        self._apps = apps
        self._paused: dict[tuple[str, str], tuple[float, AgentsvcError]] = {}

    @contextlib.asynccontextmanager
    async def calls(self, automation: Automation) -> AsyncIterator[HostCalls]:
        """Yield the API calls for an automation; while its host limits the rate, raise that error."""
        provider = automation.definition.host
        key = (automation.user_id, provider.value)
        until, error = self._paused.get(key, (0.0, None))
        if error is not None and monotonic() < until:
            raise error
        repository = automation.repository_name
        try:
            token = await self._apps.lend(automation.user_id, provider, repository)
            hosting = await self._git.hosting(automation.user_id, provider, token)
            async with self._recovering(automation, token):
                yield HostCalls(hosting, repository)
        except GitProviderRateLimited as exc:
            self._paused[key] = (monotonic() + retry_seconds(exc), exc)
            raise

    @contextlib.asynccontextmanager
    async def checkout(self, automation: Automation) -> AsyncIterator[Checkout]:
        """Yield the repository of an automation, to fetch from and to push to."""
        provider = automation.definition.host
        opened = self._git.checkout(
            automation.user_id, automation.repository_name, provider, time_limit=_GIT_SECONDS
        )
        async with opened as checkout, self._recovering(automation, checkout.remote.token):
            yield checkout

    @contextlib.asynccontextmanager
    async def _recovering(
        self, automation: Automation, token: ProviderToken | None
    ) -> AsyncIterator[None]:
        """Discard a refused token of an App, and store the new name of a renamed repository."""
        try:
            yield
        except NotFound as exc:
            if await self._is_renamed(automation, token):
                raise RepositoryRenamed("The repository was renamed") from exc
            raise
        except (NotAuthenticated, NotAllowed) as exc:
            if token and self._apps.renew(automation.user_id, automation.repository_name, token):
                raise TokenRenewed("The token of the GitHub App is renewed") from exc
            raise

    async def _is_renamed(self, automation: Automation, token: ProviderToken | None) -> bool:
        provider, before = automation.definition.host, automation.repository_name
        try:
            hosting = await self._git.hosting(automation.user_id, provider, token)
            name = await HostCalls(hosting, before).name()
            check_repository(name, provider)
        except AgentsvcError:
            # The caller raises the original error.
            return False
        if name.lower() == before.lower():
            return False
        await self._db.write(lambda tx: rename(tx, automation, name))
        extra = {"automation_id": automation.id, "repository": name}
        log.warning("repository of an automation was renamed", extra=extra)
        return True


def retry_seconds(exc: AgentsvcError) -> float:
    """Return how many seconds to wait after an error before calling the host again."""
    if isinstance(exc, TokenRenewed | RepositoryRenamed):
        return 0.0
    return max(_MIN_RETRY_SECONDS, getattr(exc, "retry_after_seconds", None) or 0.0)
