"""GitHub Apps: one per user, for the repositories on which it is installed.

The server signs with the App's key, and so gets a token for each repository, valid for an hour. Keys
and tokens are sent only to the App's own host, never to a sandbox or in an API response.
"""

import asyncio
import re
from typing import Final
from urllib.parse import quote

import msgspec

from agentsvc.base import (
    BadRequest,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Secret,
    monotonic,
    new_id,
    now,
    parse_time,
)
from agentsvc.extension.conversations import Provider, check_repository
from agentsvc.extension.git import GitApi, GitProviders, ProviderToken, part_of
from agentsvc.extension.storage import Database, Queryable, Records, Transaction, Vault, row_of

_RENAMED: Final = re.compile(r"/repositories/([0-9]{1,15})/installation")
"""Path to which GitHub redirects if the repository was renamed."""
_MAX_LIFETIME: Final = 3600.0
_MARGIN: Final = 300.0
_RENEWAL_INTERVAL: Final = 60.0
"""Minimum seconds between renewals: a new token that is refused sooner is not the cause."""


class GithubApp(msgspec.Struct, frozen=True, kw_only=True):
    """A stored App; `id` is the id of its row, `app_id` the one at GitHub."""

    id: str
    user_id: str
    app_id: str
    slug: str
    host: str | None
    sealed: bytes


class AppKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of an App."""

    private_key: str = ""
    webhook_secret: str = ""


class _CachedToken(msgspec.Struct, kw_only=True):
    """A token for a repository; `until` is a time of the monotonic clock."""

    token: ProviderToken
    until: float
    sealed: bytes
    """The App's sealed secrets at that time; if they change, the token is fetched again."""


class GithubApps:
    """Stores the Apps of users, and lends tokens for their repositories to the server."""

    def __init__(self, db: Database, vault: Vault, git: GitProviders) -> None:
        self._db = db
        self._vault = vault
        self._git = git
        self._tokens: dict[tuple[str, str], _CachedToken] = {}
        self._renewed: dict[tuple[str, str], float] = {}

    async def get(self, user_id: str) -> GithubApp:
        """Return the App of a user; raises NotFound."""
        found = await AppTable.find(self._db, user_id)
        if found is None:
            raise NotFound("There is no GitHub App")
        return found

    async def store(self, user_id: str, app_id: str, given: AppKeys, host: str | None) -> GithubApp:
        """Store the App of a user if GitHub accepts its key; secrets that are not given stay.

        Raises InvalidRequest for an invalid key, NotAuthenticated for one that is not the App's, and as
        the host's `Api`.
        """
        before = await AppTable.find(self._db, user_id)
        known = self.keys_of(before) if before else AppKeys()
        keys = AppKeys(
            private_key=given.private_key or known.private_key,
            webhook_secret=given.webhook_secret or known.webhook_secret,
        )
        made = GithubApp(
            id=before.id if before else new_id(),
            user_id=user_id,
            app_id=app_id,
            slug="",
            host=host,
            sealed=self._vault.seal(msgspec.json.encode(keys), _context(user_id)),
        )
        api = await self._api(made)
        try:
            slug = part_of((await api.call("GET", "/app")).value, "slug")
        except NotAuthenticated as exc:
            raise NotAuthenticated(f"GitHub knows no App `{app_id}` with this key") from exc
        except NotFound as exc:
            raise api.unavailable("it has no Apps") from exc
        if not slug:
            raise api.unavailable("unexpected answer")
        made = msgspec.structs.replace(made, slug=slug)
        await self._db.write(lambda tx: AppTable.put(tx, made))
        return await self.get(user_id)

    async def delete(self, user_id: str) -> None:
        """Delete the App of a user; raises NotFound."""
        if not await self._db.write(lambda tx: AppTable.delete(tx, user_id)):
            raise NotFound("There is no GitHub App")

    async def lend(self, user_id: str, provider: Provider, repository: str) -> ProviderToken | None:
        """Return the App's token for a repository, or None without an App; raises as `Api`."""
        if provider is not Provider.GITHUB or "://" in repository:
            return None
        app = await AppTable.find(self._db, user_id)
        if app is None:
            return None
        cached = self._tokens.get((user_id, repository))
        if cached is None or cached.until <= monotonic() or cached.sealed != app.sealed:
            cached = await self._fetch(app, repository)
            self._tokens[user_id, repository] = cached
        return cached.token

    def renew(self, user_id: str, repository: str, refused: ProviderToken) -> bool:
        """Discard a refused token; False if it is not an App's, or one was just discarded."""
        key = (user_id, repository)
        cached = self._tokens.get(key)
        if cached is not None and (cached.token != refused or not cached.until):
            # Another call has discarded it already.
            return True
        if cached is None or monotonic() < self._renewed.get(key, 0.0):
            return False
        cached.until, self._renewed[key] = 0.0, monotonic() + _RENEWAL_INTERVAL
        return True

    def keys_of(self, app: GithubApp) -> AppKeys:
        """Decrypt the secrets of an App."""
        return _keys.decode(self._vault.unseal(app.sealed, _context(app.user_id)))

    async def _api(self, app: GithubApp) -> GitApi:
        """Return the host's API, authenticated as the App itself."""
        private_key = self.keys_of(app).private_key
        text = await asyncio.to_thread(_signed, app.app_id, private_key)
        token = ProviderToken(token=Secret(text), host=app.host)
        return await self._git.api(app.user_id, Provider.GITHUB, token)

    async def _fetch(self, app: GithubApp, repository: str) -> _CachedToken:
        """Fetch a token that is limited to one repository."""
        owner, name = check_repository(repository, Provider.GITHUB)
        api = await self._api(app)
        what = f"the GitHub App `{app.slug}`"
        try:
            place = f"/repos/{quote(owner)}/{quote(name)}/installation"
            answer = await api.call("GET", place)
            found, moved = answer.value, _RENAMED.search(answer.path)
            if part_of(found, "suspended_at"):
                raise NotAllowed(f"The installation of {what} for `{owner}` is suspended")
            path = f"/app/installations/{quote(part_of(found, 'id'), safe='')}/access_tokens"
            only = {"repository_ids": [int(moved[1])]} if moved else {"repositories": [name]}
            made = (await api.call("POST", path, body=only)).value
        except NotAuthenticated as exc:
            text = (
                f"GitHub rejects the key of {what}: store a new one, and check this machine's clock"
            )
            raise NotAuthenticated(text) from exc
        except (NotFound, BadRequest) as exc:
            text = f"{what[0].upper()}{what[1:]} is not installed for `{repository}`"
            raise NotFound(f"{text}, or that was renamed or deleted") from exc
        token, expires_at = part_of(made, "token"), parse_time(part_of(made, "expires_at"))
        if not token or expires_at is None:
            raise api.unavailable("unexpected answer")
        # Bounded, because the clock of this machine may be wrong.
        seconds = min((expires_at - now()).total_seconds(), _MAX_LIFETIME) - _MARGIN
        lent = ProviderToken(token=Secret(token), host=app.host)
        return _CachedToken(token=lent, until=monotonic() + max(seconds, 1.0), sealed=app.sealed)


def _signed(app_id: str, private_key: str) -> str:
    # Imported on demand: few servers have Apps, and `cryptography` is slow to import.
    from .github_jwt import signed  # noqa: PLC0415

    return signed(app_id, private_key, now())


def _context(user_id: str) -> str:
    return f"GitHub App of {user_id}"


_keys = msgspec.json.Decoder(AppKeys)


class AppTable(Records[GithubApp], table="plugin_automations_apps", key="user_id"):
    """The SQL of GitHub Apps, one per user."""

    @staticmethod
    async def put(tx: Transaction, app: GithubApp) -> None:
        """Insert the App of a user, or update the existing row, which keeps its id."""
        otherwise = """
            ON CONFLICT (user_id) DO UPDATE
            SET app_id = excluded.app_id, slug = excluded.slug, host = excluded.host,
                sealed = excluded.sealed
        """
        row = row_of(app, sealed_as=_context(app.user_id))
        await tx.insert("plugin_automations_apps", row, otherwise)

    @classmethod
    async def find(cls, source: Queryable, key: str) -> GithubApp | None:
        """Return an App by the id of its row or of its user."""
        return await cls.first(source, "WHERE t.id = :name OR t.user_id = :name", name=key)
