"""A user with tokens for git hosting services that answer what was written down of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base.values import Secret
from agentsvc.domain.orders import Provider
from agentsvc.git import GitProviders
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.user_secrets import ProviderTokenPatch
from agentsvc.storage.database import Database
from agentsvc.storage.vault import Vault
from tests.git_hosts import GitHosts
from tests.plugin_loading import git_hosts


class GitUser:
    """A user, the services, and what the user has stored for them."""

    def __init__(
        self, user_id: str, secrets: SecretStore, providers: GitProviders, hosts: GitHosts
    ) -> None:
        self.id = user_id
        self.providers = providers
        self.hosts = hosts
        self._secrets = secrets
        self._tokens: dict[Provider, ProviderTokenPatch] = {}

    async def connect(
        self, *providers: Provider, value: str = "good", host: str | None = None
    ) -> None:
        for provider in providers:
            self._tokens[provider] = ProviderTokenPatch(
                token=Secret(value), host=self.hosts.url if host is None else host
            )
        await self._secrets.set_provider_tokens(self.id, self._tokens)


@pytest.fixture
async def hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts


async def _trusts_all(_user_id: str) -> bool:
    return True


@pytest.fixture
async def user(db: Database, tmp_path: Path, hosts: GitHosts) -> AsyncIterator[GitUser]:
    secrets = SecretStore(db, Vault.open(tmp_path / "master.key"))
    providers = GitProviders(secrets, time_limit=10, trusts=_trusts_all, more=git_hosts())
    await providers.open()
    user_id = await KeyRing(db).create_user("ann", Role.MEMBER)
    yield GitUser(user_id, secrets, providers, hosts)
    await providers.close()
    assert hosts.unexpected == []
