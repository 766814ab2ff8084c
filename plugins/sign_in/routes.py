"""The API of sign-in: for the login page, for invitations, and for logouts by providers."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from agentsvc.base import (
    BadRequest,
    Conflict,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    SentSecret,
    ShownSecret,
    SignInUnavailable,
    TooManyRequests,
    now,
    to_stored,
)
from agentsvc.extension.accounts import (
    KEYRING,
    LOGIN_PROVIDERS,
    LOGINS,
    OPEN_CONNECTIONS,
    LoginProvider,
    NewLogin,
    answer_login,
    browser_of,
    check_login,
    is_from_proxy,
    note_login,
    read_form,
)
from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import (
    FORM,
    JSON,
    SUCCESS,
    Route,
    Routes,
    Scope,
    Success,
    Time,
    json_response,
    links_of,
    path_text,
    read_json,
)

from .attempts import Attempts
from .config import Roles, SignInConfig
from .identities import MIGRATIONS, ExternalIdentity, Identities
from .provider import Claims, Provider, check_installed, new_session
from .roles import role_of

PREFIX: Final = "/api/v1/sign-in"
_PROXY: Final = ""
"""The name of the proxy among the providers; no provider has an empty name."""
_LONGEST_NAME: Final = 100
_LONGEST_SUBJECT: Final = 255
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""The characters that represent bytes of invalid UTF-8."""

_ERRORS: Final = (
    BadRequest,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Conflict,
    TooManyRequests,
    SignInUnavailable,
)

type Token = Annotated[SentSecret, Meta(min_length=1, max_length=1000)]
type Name = Annotated[str, Meta(min_length=1, max_length=100)]


class AttemptOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start a sign-in."""

    provider: Name
    """Name of the provider, as `GET /api/v1/logins/providers` lists it"""
    invitation: Token | None = None
    """Token of an invitation, at most 1000 characters; null without one"""


class BegunSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A started sign-in."""

    url: str
    """URL of the provider for the browser"""
    binding: ShownSecret
    """Token that the page keeps in its storage until the provider has redirected the browser back"""


class SignInAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a provider's redirect, and the token that the page kept."""

    state: Token
    """`state` of the URL, at most 1000 characters"""
    code: Annotated[SentSecret, Meta(min_length=1, max_length=4096)]
    """`code` of the URL, at most 4096 characters"""
    binding: Token
    """`binding` from the start of the sign-in, at most 1000 characters"""
    iss: Annotated[str, Meta(max_length=1000)] | None = None
    """`iss` of the URL; null if the provider sends none"""


class ProxyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in by the proxy in front of the server, which names the user in a header."""

    invitation: Token | None = None
    """Token of an invitation, at most 1000 characters; null without one"""


class InvitationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The user to invite."""

    user_name: Name
    """Name of a user of this server; the account that signs in with the invitation becomes this user"""


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation, which is valid once."""

    url: ShownSecret
    """URL to open in a browser; shown only here"""
    expires_at: Time
    """When it expires"""


class LogoutForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form that a provider sends when a user has logged out there."""

    logout_token: Annotated[SentSecret, Meta(min_length=1, max_length=20_000)]
    """Signed token that names the user, at most 20,000 characters"""


class SignIn(Extension[SignInConfig]):
    """The server extension of sign-in by providers and proxies."""

    Config = SignInConfig
    prefix = PREFIX
    migrations = MIGRATIONS

    def routes(self) -> Iterable[Route]:
        """Return the routes for the login page, for invitations, and for logouts by providers."""
        routes = Routes(scope=Scope.OPEN, errors=_ERRORS)
        example = {"provider": "company"}
        routes.add("POST", "/attempts", BegunSignIn, body=AttemptOrder, example=example)(
            self.post_attempt
        )
        kept = {"state": "of the address", "code": "of the address", "binding": "kept"}
        routes.add("POST", "", NewLogin, body=SignInAnswer, example=kept, status=201)(
            self.post_answer
        )
        routes.add("POST", "/proxy", NewLogin, body=ProxyOrder, example={}, status=201)(
            self.post_proxy
        )
        routes.add(
            "POST",
            "/invitations",
            example={"user_name": "admin"},
            status=201,
            scope=Scope.ADMIN,
        )(self.post_invitation)
        routes.add(
            "POST",
            "/{login_provider}/logout",
            Success,
            body=LogoutForm,
            example={"logout_token": "a token of the provider"},
            reads=(FORM, JSON),
        )(self.post_logout)
        return routes

    def install(self, app: web.Application) -> None:
        """Register the providers for the login page."""
        shown = [
            LoginProvider(name=name, title=one.title or name)
            for name, one in self.config.providers.items()
        ]
        if self.config.proxy.user_header:
            title = self.config.proxy.title or "this network"
            shown.append(LoginProvider(name=_PROXY, title=title))
        app[LOGIN_PROVIDERS] = tuple(shown)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Create the providers and their HTTP session."""
        self._identities = Identities(server.database)
        self._attempts = Attempts()
        if self.config.providers:
            check_installed()
        async with new_session() as session:
            skew = self.config.clock_skew_seconds
            self._providers = {
                name: Provider(name, one, session, skew=skew)
                for name, one in self.config.providers.items()
            }
            yield

    async def post_attempt(self, request: web.Request) -> web.Response:
        """Start a sign-in by a provider.

        The page keeps `binding` in the storage of its origin and sends the browser to `url`; the
        provider redirects it back to `/login` of this server.
        """
        check_login(request)
        order = await read_json(request, AttemptOrder)
        provider = self._provider(order.provider)
        state, binding, attempt = self._attempts.begin(
            order.provider,
            redirect_uri=f"{links_of(request).base}/login",
            invitation=order.invitation,
        )
        url = await provider.authorization_url(state, attempt)
        return json_response(BegunSignIn(url=url, binding=binding))

    async def post_answer(self, request: web.Request) -> web.Response:
        """Log a browser in with the response of a provider.

        Only for the page that started the sign-in, once. The response is that of a login with a key.
        """
        check_login(request)
        order = await read_json(request, SignInAnswer)
        attempt = self._attempts.redeem(order.state, order.binding)
        provider = self._provider(attempt.provider)
        provider.check_issuer(order.iss)
        claims = await provider.redeem(order.code, attempt)
        session = claims.get("sid")
        return await self._log_in(
            request,
            _person_of(provider, claims),
            attempt.invitation,
            session=session if isinstance(session, str) else None,
        )

    async def post_proxy(self, request: web.Request) -> web.Response:
        """Log a browser in as the user that a trusted proxy names.

        Only if `sign_in.proxy` names the header and the request comes from one of
        `server.trusted_proxies`; headers of other clients are ignored.
        """
        check_login(request)
        order = await read_json(request, ProxyOrder)
        config = self.config.proxy
        if not config.user_header:
            raise NotFound("This server has no sign-in by a proxy")
        named = request.headers.getall(config.user_header, [])
        if not is_from_proxy(request) or len(named) != 1 or not named[0].strip():
            raise NotAuthenticated("No trusted proxy has named the user")
        groups = request.headers.getall(config.groups_header, [])
        if len(groups) > 1:
            raise NotAuthenticated("The proxy names your groups more than once")
        listed = [one.strip() for one in "".join(groups).split(",")]
        person = _identity(config, _PROXY, named[0].strip(), named[0].strip(), listed)
        return await self._log_in(request, person, order.invitation, session=None)

    async def post_invitation(self, request: web.Request, body: InvitationOrder) -> Invitation:
        """Invite somebody to sign in as a user.

        For a user of this server who is to sign in by a provider, or by the proxy, from now on.
        The first account that signs in by the URL becomes that user.
        """
        user_id = await request.app[KEYRING].find_user(body.user_name)
        if user_id is None:
            raise NotFound("There is no user of this name; create one first")
        lifetime = timedelta(days=self.config.invitation_days)
        token = await self._identities.invite(user_id, lifetime)
        url = f"{links_of(request).base}/login?invitation={token.reveal()}"
        return Invitation(url=url, expires_at=to_stored(now() + lifetime))

    async def post_logout(self, request: web.Request) -> web.Response:
        """End the logins of a user who has logged out at a provider.

        The back channel for providers; the token is signed, and valid once. Streams of these logins end, too.
        """
        form = await read_form(request, LogoutForm)
        provider = self._provider(path_text(request, "login_provider"))
        claims = await provider.check_logout(form.logout_token)
        subject, session = (_text(claims.get(name)) for name in ("sub", "sid"))
        if subject is None and session is None:
            raise NotAuthenticated("The token names neither a user nor a session")
        ended = await self._identities.logins_of(provider.name, subject=subject, session=session)
        for user_id, login_id in ended:
            # The browser may have ended the login already.
            with suppress(NotFound):
                await request.app[LOGINS].end(user_id, login_id)
        await request.app[OPEN_CONNECTIONS].close_revoked()
        response = json_response(SUCCESS)
        response.headers[hdrs.CACHE_CONTROL] = "no-store"
        return response

    async def _log_in(
        self,
        request: web.Request,
        person: ExternalIdentity,
        invitation: str | None,
        *,
        session: str | None,
    ) -> web.Response:
        if len(person.subject) > _LONGEST_SUBJECT or _SURROGATE.search(
            person.subject + person.name
        ):
            raise NotAuthenticated("The id of the account is not a text of at most 255 characters")
        key_id = await self._identities.find_key(person, invitation)
        logins = request.app[LOGINS]
        login, token = await logins.begin_for(key_id, client=browser_of(request))
        await self._identities.note_login(login.id, person, session)
        await note_login(request, login)
        return answer_login(request, login, token)

    def _provider(self, name: str) -> Provider:
        found = self._providers.get(name)
        if found is None:
            raise NotFound("There is no provider of this name")
        return found


def _person_of(provider: Provider, claims: Claims) -> ExternalIdentity:
    """Return the account in the claims; raises NotAllowed without a role, or NotAuthenticated."""
    config, subject = provider.config, _text(claims.get("sub"))
    if not subject:
        raise NotAuthenticated("The provider does not name the user")
    names = ((_text(claims.get(one)) or "").strip() for one in (config.name_claim, "email"))
    name = next((one for one in names if one), subject)
    return _identity(config, provider.name, subject, name, claims.get(config.groups_claim))


def _identity(
    config: Roles, provider: str, subject: str, name: str, groups: Any
) -> ExternalIdentity:
    return ExternalIdentity(
        provider=provider,
        subject=subject,
        name=name[:_LONGEST_NAME],
        role=role_of(config, groups),
        may_be_new=config.new_users,
        has_groups=bool(config.roles),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
