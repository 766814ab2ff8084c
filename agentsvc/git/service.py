"""Calls to git hosting services on behalf of users, with their stored tokens.

A token counts as invalid only if its host clearly rejects it; after any other error it is unchecked.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from agentsvc.agentserver import AddressNotAllowed, SafeConnector
from agentsvc.base import (
    AgentsvcError,
    BadRequest,
    GitProviderRateLimited,
    GitProviderUnavailable,
    GitTokenMissing,
    InvalidRequest,
    NotAllowed,
    NotFound,
)
from agentsvc.domain import Provider, SuggestedTask
from agentsvc.domain import repositories as git
from agentsvc.git.checkout import Checkout, GitRemote, address_of
from agentsvc.git.client import GitApi, not_public, unavailable
from agentsvc.git.github import GitHub
from agentsvc.git.gitlab import GitLab
from agentsvc.git.hosting import Hosting
from agentsvc.git.lookup import PATH_LOC
from agentsvc.git.microagents import (
    EXTENSION,
    MICROAGENT_MAX,
    MicroagentFile,
    directory_of,
    microagents_in,
    read_microagent,
)
from agentsvc.git.model import (
    PAGE_MAX,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Listing,
    Repository,
    RepositoryQuery,
)
from agentsvc.settings import ProviderToken, ProviderTokenPatch, SecretStore, merge_token

log = logging.getLogger(__name__)

TIME_LIMIT: Final = 10.0
WALKED_PAGES_MAX: Final = 10
"""Maximum number of a service's pages that are read for one request."""

_HOSTINGS: Final[Mapping[Provider, type[Hosting]]] = {
    Provider.GITHUB: GitHub,
    Provider.GITLAB: GitLab,
}
_UNCHECKED: Final = (
    BadRequest,
    GitProviderRateLimited,
    GitProviderUnavailable,
    NotAllowed,
    NotFound,
)


_ANYWHERE: Final = SafeConnector(anywhere=True)


type Lender = Callable[[str, Provider, str], Awaitable[ProviderToken | None]]
"""Returns the server's own token for a user's repository, used before a stored one, or None."""


async def _trusts_nobody(_user_id: str) -> bool:
    return False


async def _lends_nothing(_user_id: str, _provider: Provider, _repository: str) -> None:
    return None


class GitProviders(msgspec.Struct, eq=False):
    """The calls to all git hosting services; call `open` first and `close` at the end.

    Calls for a user raise GitTokenMissing if the user has no token for the service, and the errors of
    the services: NotAuthenticated, NotAllowed, NotFound, BadRequest,
    GitProviderRateLimited, GitProviderUnavailable. Hosts at private addresses are called for users for whom
    `trusts` returns True, and those listed in `reach` for everybody. If a call goes to several services, those that
    fail are omitted, unless all do. `more` are services in addition to GitHub and GitLab.
    """

    secrets: SecretStore
    time_limit: float = TIME_LIMIT
    checks_tokens: bool = True
    reach: SafeConnector = msgspec.field(default_factory=SafeConnector)
    trusts: Callable[[str], Awaitable[bool]] = _trusts_nobody
    more: Mapping[Provider, type[Hosting]] = {}
    lender: Lender = _lends_nothing
    _directory: Path | None = None
    _session: aiohttp.ClientSession | None = None
    _anywhere: aiohttp.ClientSession | None = None

    async def open(self, directory: Path | None = None) -> None:
        """Create the HTTP sessions; needs a running event loop.

        The directory is for checkouts; what a killed server left in it is removed.
        """
        self._directory = directory
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        self._session = self.reach.session(decompresses=True)
        self._anywhere = _ANYWHERE.session(decompresses=True)

    async def close(self) -> None:
        """Close all connections."""
        sessions = (self._session, self._anywhere)
        self._session = self._anywhere = None
        for session in sessions:
            if session is not None:
                await session.close()

    # Accounts

    async def store_tokens(
        self, user_id: str, tokens: Mapping[Provider, ProviderTokenPatch]
    ) -> list[Provider]:
        """Replace the tokens of a user, and return the providers that could not check theirs.

        Each is checked with its provider first, unless checks are disabled. Raises
        NotAuthenticated, with nothing stored, if one is rejected; if its provider cannot be reached, a
        token is stored unchecked.
        """
        stored = await self.secrets.provider_tokens(user_id)
        is_trusted = await self.trusts(user_id)
        unchecked = []
        for provider, patch in tokens.items() if self.checks_tokens else ():
            token = merge_token(stored.get(provider), patch)
            if token is None:
                continue
            try:
                await self.identify(provider, token, is_trusted=is_trusted)
            except _UNCHECKED:
                unchecked.append(provider)
        await self.secrets.set_provider_tokens(user_id, tokens)
        return unchecked

    async def get_account(self, user_id: str) -> GitAccount:
        """Return the user's account at the first provider that responds.

        Raises the error of the last provider if none does: NotAuthenticated for a rejected token,
        GitProviderRateLimited or GitProviderUnavailable.
        """
        identify = partial(self.identify, is_trusted=await self.trusts(user_id))
        return (await self._first(user_id, identify))[1]

    async def get_organizations(self, user_id: str) -> tuple[Provider, list[str]]:
        """Return the organizations of a user at the first provider that responds."""
        is_trusted = await self.trusts(user_id)

        async def ask(provider: Provider, token: ProviderToken) -> list[str]:
            return await self._hosting(provider, token, is_trusted=is_trusted).organizations()

        return await self._first(user_id, ask)

    async def identify(
        self, provider: Provider, token: ProviderToken, *, is_trusted: bool = False
    ) -> GitAccount:
        """Return the account of a token; `is_trusted` allows hosts at private addresses.

        Raises NotAuthenticated, GitProviderRateLimited or GitProviderUnavailable.
        """
        try:
            return await self._hosting(provider, token, is_trusted=is_trusted).account()
        except (BadRequest, InvalidRequest, NotAllowed, NotFound) as exc:
            # Another service may run at that host, so its response does not make the token invalid.
            raise unavailable(provider, exc.message) from exc

    # Repositories and tasks

    async def search_installations(
        self, user_id: str, provider: Provider, cursor: str | None, limit: int
    ) -> Listing[str]:
        """Return installations, workspaces, groups or organizations at a provider."""
        hosting = await self.hosting(user_id, provider)
        return await hosting.installations(cursor, limit)

    async def all_installations(self, user_id: str, provider: Provider) -> list[str]:
        """Return the installations of all pages, up to `WALKED_PAGES_MAX`."""
        hosting = await self.hosting(user_id, provider)
        return await _walk(lambda cursor: hosting.installations(cursor, PAGE_MAX))

    async def search_repositories(
        self, user_id: str, provider: Provider, query: RepositoryQuery
    ) -> Listing[Repository]:
        """Return repositories of a user at a provider."""
        return await _repositories(await self.hosting(user_id, provider), query)

    async def repositories_page(
        self, user_id: str, provider: Provider | None, query: RepositoryQuery, page: int | None
    ) -> Listing[Repository]:
        """Return a numbered page of each provider, or all pages up to `WALKED_PAGES_MAX`.

        Without a provider, all of the user's providers are called. The cursor is set if there are more.
        """
        cursors: list[str] = []

        async def ask(hosting: Hosting) -> list[Repository]:
            if page is None:
                return await _walk(lambda cursor: _repositories(hosting, _at(query, cursor)))
            listing = await _numbered(hosting, query, page)
            cursors.extend([listing.cursor] if listing.cursor is not None else [])
            return listing.items

        items = await self._each(user_id, provider, ask)
        return Listing(items=items, cursor=cursors[0] if cursors else None)

    async def search_branches(
        self, user_id: str, provider: Provider | None, query: BranchQuery
    ) -> Listing[Branch]:
        """Return branches of a repository, at the user's provider that has it."""
        hosting, _ = await self._find_home(user_id, provider, query.repository)
        return await hosting.branches(query)

    async def branches_page(
        self, user_id: str, query: BranchQuery, page: int | None
    ) -> Listing[Branch]:
        """Return a numbered page of branches, or all pages up to `WALKED_PAGES_MAX`."""
        hosting, _ = await self._find_home(user_id, None, query.repository)
        if page is not None:
            return await hosting.branches(_at(query, hosting.cursor_of(page, query.limit)))
        return Listing(items=await _walk(lambda cursor: hosting.branches(_at(query, cursor))))

    async def suggested_tasks(self, user_id: str) -> list[SuggestedTask]:
        """Return the suggested tasks of a user at all providers."""
        return await self._each(user_id, None, lambda hosting: hosting.suggested_tasks())

    # Microagents

    async def microagents(self, user_id: str, repository: str) -> tuple[list[File], str | None]:
        """Return the microagents of a repository, and when their directory was last changed."""
        hosting, provider = await self._find_home(user_id, None, repository)
        directory = directory_of(repository, provider)
        try:
            found = microagents_in(await hosting.files(repository, directory))
        except NotFound:
            # Most repositories have no microagents; check that the repository exists.
            await hosting.repository(repository)
            return [], None
        return found, await hosting.changed_at(repository, directory) if found else None

    async def get_microagent(
        self, user_id: str, repository: str, path: str
    ) -> tuple[MicroagentFile, Provider]:
        """Return one microagent of a repository, and the provider that has it.

        Raises InvalidRequest for a file of another type, and NotFound for a file that is too large.
        """
        if not path.endswith(EXTENSION):
            raise InvalidRequest(f"A microagent is a `{EXTENSION}` file", loc=PATH_LOC)
        hosting, provider = await self._find_home(user_id, None, repository)
        text = await hosting.content(repository, path)
        if len(text) > MICROAGENT_MAX:
            raise NotFound(f"A microagent has at most {MICROAGENT_MAX // 1024} KiB")
        return read_microagent(text), provider

    # For the server itself

    async def api(
        self, user_id: str, provider: Provider, token: ProviderToken | None = None
    ) -> GitApi:
        """Return the API of a service with a token; the default is the user's own."""
        return (await self.hosting(user_id, provider, token)).api

    async def hosting(
        self, user_id: str, provider: Provider, token: ProviderToken | None = None
    ) -> Hosting:
        """Return a service with a token; the default is the user's own."""
        token = token or (await self._tokens(user_id, provider))[provider]
        return self._hosting(provider, token, is_trusted=await self.trusts(user_id))

    @contextlib.asynccontextmanager
    async def checkout(
        self, user_id: str, repository: str, provider: Provider | None, *, time_limit: float
    ) -> AsyncIterator[Checkout]:
        """Yield a repository to fetch from and push to, with a lent or a stored token, if any."""
        stored = await self.secrets.provider_tokens(user_id)
        if provider is not None and (lent := await self.lender(user_id, provider, repository)):
            stored[provider] = lent
        hosts: dict[str, str | None] = {name: token.host for name, token in stored.items()}
        located = git.locate(repository, provider, hosts)
        owner = located.provider or provider or Provider.GITHUB
        token = stored.get(located.provider) if located.provider else None
        host, port = address_of(located.url)
        reach = _ANYWHERE if await self.trusts(user_id) else self.reach
        try:
            found = [address for _, address in await reach.resolve(host, port)]
        except AddressNotAllowed as exc:
            raise not_public(owner, exc) from exc
        except OSError as exc:
            raise unavailable(owner, f"{host}: {exc.strerror or exc}") from exc
        if self._directory is None:
            raise unavailable(owner, "the client is not open")
        addresses = () if host in found else (f"{host}:{port}:{','.join(map(_bracketed, found))}",)
        remote = GitRemote(provider=owner, url=located.url, token=token, addresses=addresses)
        async with Checkout(self._directory, remote, time_limit=time_limit) as made:
            yield made

    # Selection of services

    def _hosting(self, provider: Provider, token: ProviderToken, *, is_trusted: bool) -> Hosting:
        session = self._anywhere if is_trusted else self._session
        if session is None:
            raise unavailable(provider, "the client is not open")
        kind = {**_HOSTINGS, **self.more}.get(provider)
        if kind is None:
            raise BadRequest(f"The git provider `{provider.value}` has no API of its own")
        usual = git.DEFAULT_HOSTS.get(provider)
        host = token.host or usual
        if host is None:
            raise BadRequest(f"The git provider `{provider.value}` needs a host next to its token")
        base = git.check_host(host)
        if not is_trusted:
            self._check_literal(provider, base)
        places = kind.places(base, is_usual=base == f"https://{usual}")
        api = GitApi(
            session=session,
            time_limit=self.time_limit,
            provider=provider,
            token=token,
            rest=places.rest,
            graphql=places.graphql,
        )
        return kind(api, base)

    def _check_literal(self, provider: Provider, base: str) -> None:
        """Check a host that is an IP address, since the resolver does not see it."""
        try:
            url = URL(base)
            self.reach.check_literal(url.raw_host or "", url.port or 0)
        except AddressNotAllowed as exc:
            raise not_public(provider, exc) from exc
        except ValueError as exc:
            raise unavailable(provider, str(exc)) from exc

    async def _tokens(
        self, user_id: str, provider: Provider | None
    ) -> dict[Provider, ProviderToken]:
        """Return the tokens of a user in the order of providers, or only that of one provider."""
        stored = await self.secrets.provider_tokens(user_id)
        wanted = list(Provider) if provider is None else [provider]
        tokens = {one: stored[one] for one in wanted if one in stored}
        if not tokens:
            raise GitTokenMissing("Git provider token required (such as GitHub).")
        return tokens

    async def _first[T](
        self, user_id: str, ask: Callable[[Provider, ProviderToken], Awaitable[T]]
    ) -> tuple[Provider, T]:
        failure: AgentsvcError = GitTokenMissing("Git provider not connected")
        stored = await self.secrets.provider_tokens(user_id)
        for provider in [one for one in Provider if one in stored]:
            try:
                return provider, await ask(provider, stored[provider])
            except AgentsvcError as exc:
                failure = exc
        raise failure

    async def _each[T](
        self,
        user_id: str,
        provider: Provider | None,
        ask: Callable[[Hosting], Awaitable[Sequence[T]]],
    ) -> list[T]:
        """Return the results of all providers, called in turn; raises if all fail."""
        found: list[T] = []
        failures: list[AgentsvcError] = []
        tokens = await self._tokens(user_id, provider)
        is_trusted = await self.trusts(user_id)
        for one, token in tokens.items():
            try:
                found += await ask(self._hosting(one, token, is_trusted=is_trusted))
            except AgentsvcError as exc:
                failures.append(exc)
                log.warning(
                    "git provider failed, omitted of the list",
                    extra={"provider": one.value, "code": exc.code, "reason": exc.detail},
                )
        if len(failures) == len(tokens):
            raise failures[0]
        return found

    async def _find_home(
        self, user_id: str, provider: Provider | None, repository: str
    ) -> tuple[Hosting, Provider]:
        """Return the service that has a repository; raises NotFound only if all respond so."""
        tokens = await self._tokens(user_id, provider)
        is_trusted = await self.trusts(user_id)
        if len(tokens) == 1:
            [(only, token)] = tokens.items()
            return self._hosting(only, token, is_trusted=is_trusted), only
        failure: AgentsvcError = NotFound(f"Unable to access repo {repository}")
        for one, token in tokens.items():
            try:
                hosting = self._hosting(one, token, is_trusted=is_trusted)
                await hosting.repository(repository)
            except (NotFound, InvalidRequest):
                continue
            except AgentsvcError as exc:
                failure = exc
            else:
                return hosting, one
        raise failure


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _at[Q: (RepositoryQuery, BranchQuery)](query: Q, cursor: str | None) -> Q:
    return msgspec.structs.replace(query, cursor=cursor)


async def _repositories(hosting: Hosting, query: RepositoryQuery) -> Listing[Repository]:
    """Return repositories; a URL as the text finds the one repository at that URL."""
    if "://" not in query.text:
        return await hosting.repositories(query)
    name = hosting.name_at(query.text)
    try:
        return Listing(items=[await hosting.repository(name)] if name else [])
    except (NotFound, InvalidRequest):
        return Listing(items=[])


async def _walk[T](ask: Callable[[str | None], Awaitable[Listing[T]]]) -> list[T]:
    """Return the items of all pages, up to `WALKED_PAGES_MAX`."""
    found: list[T] = []
    cursor: str | None = None
    for _ in range(WALKED_PAGES_MAX):
        listing = await ask(cursor)
        found += listing.items
        cursor = listing.cursor
        if cursor is None:
            break
    return found


async def _numbered(hosting: Hosting, query: RepositoryQuery, page: int) -> Listing[Repository]:
    """Return a page by its number; if pages are not numbered, read those before it."""
    if hosting.counts_pages(query):
        cursor = hosting.cursor_of(page, query.limit)
        return await _repositories(hosting, _at(query, cursor))
    listing = await hosting.repositories(query)
    for _ in range(page - 1):
        if listing.cursor is None or page > WALKED_PAGES_MAX:
            return Listing(items=[])
        listing = await hosting.repositories(_at(query, listing.cursor))
    return listing
