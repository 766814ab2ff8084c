"""Route tables, and how they are added to the application."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, TypedDict, Unpack, get_args
from uuid import UUID

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, Meta

from agentsvc.accounts import Principal
from agentsvc.base import AgentsvcError, errors
from agentsvc.http.path_parts import names_in, part_of
from agentsvc.http.wire import (
    json_response,
    path_id,
    path_text,
    read_json,
    read_query,
)

READS_ONLY: Final = "This key, or its user, may only read"
"""What is said to a caller who would change something."""

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scope(StrEnum):
    """Whose key opens a route; the texts below are told in the description."""

    OPEN = "open"
    """Needs no key."""
    READ = "read"
    """Needs any key of a user."""
    RUN = "run"
    """Needs a key of the scope `run` or `admin`, of a user who is no viewer."""
    MANAGE = "manage"
    """Needs a key of the scope `admin`, of a user who is no viewer."""
    ADMIN_READ = "admin_read"
    """Needs any key of an administrator."""
    ADMIN = "admin"
    """Needs a key of the scope `admin`, of an administrator."""
    SANDBOX = "sandbox"
    """Needs the session key of a running sandbox."""
    MODEL = "model"
    """Needs the token for the model of a conversation, which its sandbox has."""
    PASS = "pass"  # noqa: S105  # the kind of key, not a key
    """Needs the signed pass for one secret, which a sandbox got from this server."""


OF_USERS: Final = frozenset({Scope.READ, Scope.RUN, Scope.MANAGE, Scope.ADMIN_READ, Scope.ADMIN})
"""The scopes of routes that a user's key opens."""


def check_scope(scope: Scope, caller: Principal) -> None:
    """Raise NotAllowed for a caller who may not use a route of this scope."""
    if scope in (Scope.ADMIN, Scope.ADMIN_READ) and not caller.is_admin:
        raise errors.NotAllowed("This is for administrators")
    if scope in (Scope.RUN, Scope.MANAGE, Scope.ADMIN) and not caller.may_run:
        raise errors.NotAllowed(READS_ONLY)
    if scope in (Scope.MANAGE, Scope.ADMIN) and not caller.may_manage:
        raise errors.NotAllowed("This needs a key of the scope `admin`")


class Undescribed:
    """Stands for the answer of a route that does not say what it answers; a test refuses it."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A request that works; the values of the path are the same everywhere."""

    query: Mapping[str, Any] = {}
    body: Any = UNSET


JSON: Final = "application/json"
type Respond = Callable[[web.Request, Any], web.Response]
type GoOn = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation makes, by its type, and how that is answered.

    The service notes it in its transaction (`note_effect`), so that the answer is stored
    together with it for who repeats the request.
    """

    kind: type
    answer: Respond
    status: int = HTTPStatus.OK
    show: Callable[[Any], Any] | None = None
    """What the answer is made by, if that says of which type it is."""


def effect_of[T](kind: type[T], show: Callable[[T], Any], *, status: int = HTTPStatus.OK) -> Effect:
    """Return the effect of an operation that makes something, and answers what is shown of it.

    The operation has this status, and answers what `show` says that it returns, unless it says otherwise.
    """
    return Effect(
        kind=kind,
        answer=lambda _, made: json_response(show(made), status=status),
        status=status,
        show=show,
    )


def _shown_by(effect: Effect) -> Any:
    """Return the type of what an effect shows, which may be written as a text."""
    found = inspect.get_annotations(effect.show, eval_str=True) if effect.show else {}
    return found.get("return", Undescribed)


FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
TEXT: Final = "text/plain"
HTML: Final = "text/html"
ZIP: Final = "application/zip"

OF_AGENTS: Final = (
    errors.NotFound,
    errors.Conflict,
    errors.Gone,
    errors.SandboxNotUsable,
    errors.AgentUnavailable,
    errors.AgentRefused,
)
"""What stands in the way of an operation that asks the agent server of a conversation."""
OF_GIT_PROVIDERS: Final = (
    errors.BadRequest,
    errors.NotAuthenticated,
    errors.NotAllowed,
    errors.NotFound,
    errors.GitProviderRateLimited,
    errors.GitProviderUnavailable,
)
"""What stands in the way of an operation that asks git providers."""
OF_SANDBOXES: Final = (
    errors.NotFound,
    errors.Conflict,
    errors.Gone,
    errors.Unsupported,
    errors.SandboxNotUsable,
    errors.QuotaExceeded,
    errors.BackendUnavailable,
    errors.BackendBroken,
)
"""What stands in the way of an operation that wants another state of a sandbox."""
OF_STARTS: Final = (
    errors.BadRequest,
    errors.NotFound,
    errors.Conflict,
    errors.OrderRejected,
    errors.QuotaExceeded,
    errors.SandboxLimitReached,
    errors.BackendUnavailable,
)
"""What stands in the way of the start of a conversation."""

EXAMPLE_ID: Final = "7c9e6679742540de944be07fc1f90ae7"
"""The id of a conversation, and of everything that goes with one, in examples."""

KEY_PARAMETER: Final = "session_api_key"
"""The query parameter in which a stream may get its key."""

MAX_QUERY_KEYS: Final = 8
"""How many of them are looked at: that is work for whoever sends them, be it nobody who is known."""

SERVICE_HEADER: Final = "X-Service-API-Key"
"""The header of routes on which a service makes keys for users."""

LOGIN_HEADER: Final = "X-Agentsvc-Login"
"""The header in which a page sends its part of a browser's login."""

LOGIN_PATH: Final = "/login"
"""The page on which a browser logs in."""

SHOWN_AS: Final = "x-shown-as"
"""Names, in a schema, the type that describes a value which is decoded later."""


class Socket(msgspec.Struct, frozen=True, kw_only=True):
    """A connection of Socket.IO that tells what an operation returns, as it happens.

    `query` is the type of what a client asks for when it connects; `sent` and `taken` are the types
    of what the server sends and takes, by the names of their events.
    """

    path: str
    summary: str
    text: str
    query: type[msgspec.Struct]
    sent: Mapping[str, tuple[Any, ...]]
    taken: Mapping[str, tuple[Any, ...]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: a method on a path, who may call it, what it reads and what it answers.

    What follows `summary` is for the published description. `path_types` are the types of the parts of its path, where they are not what their
    names stand for elsewhere. `body` and `query` are the types its handler decodes, None where it
    reads none; `reads` names the media types of the body. `answer` is the type of the answer to
    what is right, which has `status` and is sent as `media`; None where nothing is right. `errors`
    are those it raises beside the ones that follow from the rest.

    `accepted` says when it answers 202 and no body instead.

    `effect` is what it makes; without one it may be done again after a crash, with the same result.
    `goes_on` answers who repeats a request whose stream had only begun, from what it began with.

    `key_header` is a further header in which its key may come.

    A stream may go on for longer than a request may take; `message` is the type of each message of
    one that is no JSON, and `socket` tells the same over Socket.IO. A page is what a browser goes to: its
    key may come as the password of HTTP Basic authentication, too. Where `takes_query_key`, it may
    come in the query, or as the first message of a WebSocket: programs in a browser cannot send
    headers with everything. Nobody reads `rank`: plugins that were written before may give one.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope
    summary: str
    rank: str = ""
    path_types: Mapping[str, Any] = {}
    query: Any = None
    body: Any = None
    reads: tuple[str, ...] = (JSON,)
    answer: Any = Undescribed
    status: int = HTTPStatus.OK
    media: str = JSON
    accepted: str = ""
    errors: tuple[type[AgentsvcError], ...] = ()
    example: Example = Example()
    effect: Effect | None = None
    goes_on: GoOn | None = None
    key_header: str = ""
    is_stream: bool = False
    message: Any = None
    socket: Socket | None = None
    is_page: bool = False
    takes_query_key: bool = False
    is_deprecated: bool = False


class Described(TypedDict, total=False):
    """What a `Route` says of its handler, beside its method, its path and its summary."""

    scope: Scope
    path_types: Mapping[str, Any]
    query: Any
    body: Any
    reads: tuple[str, ...]
    answer: Any
    status: int
    media: str
    accepted: str
    errors: tuple[type[AgentsvcError], ...]
    example: Any
    effect: Effect
    goes_on: GoOn
    key_header: str
    is_stream: bool
    message: Any
    socket: Socket
    is_page: bool
    takes_query_key: bool
    is_deprecated: bool


class Routes(list[Route]):
    """A table of routes that handlers put themselves into.

    Their paths come behind its prefix; what is said of the table is said of all of them.
    """

    def __init__(self, prefix: str = "", **common: Unpack[Described]) -> None:
        super().__init__()
        self._prefix = prefix
        self._common = common

    def add[H: Callable[..., Awaitable[Any]]](
        self,
        method: str,
        path: str,
        answer: Any = Undescribed,
        /,
        *,
        summary: str = "",
        **described: Unpack[Described],
    ) -> Callable[[H], H]:
        """Decorate a handler of an operation; its docstring begins with the summary, else that is given.

        Where no scope is said, GET only looks at what is the user's own, and all else may change it.
        An example is the query of a GET, and the body of all else. What a handler takes as `query` and
        `body` is read by the types it says of them, before it is called, and so is what it takes by the
        name of a part of its path: a UUID as 32 hex digits, all else as a text. A body that may be None
        may be left out. One that returns no
        response returns the answer, whose type it says, too, or what its effect says how to answer.
        """
        is_get = method == hdrs.METH_GET
        said: dict[str, Any] = {
            "scope": Scope.READ if is_get else Scope.RUN,
            "answer": answer,
            **self._common,
            **described,
        }
        if (effect := said.get("effect")) is not None:
            said.setdefault("status", effect.status)
            said["answer"] = _shown_by(effect) if said["answer"] is Undescribed else said["answer"]
        if "example" in said and not isinstance(said["example"], Example):
            said["example"] = Example(**{"query" if is_get else "body": said["example"]})

        def put(handler: H) -> H:
            first = summary or (handler.__doc__ or "").partition("\n")[0].removesuffix(".")
            is_told = said["answer"] is not Undescribed
            takes = _READ & handler.__annotations__.keys()
            parts = [
                name for name in names_in(self._prefix + path) if name in handler.__annotations__
            ]
            # Those of a handler that says all here, as before there were others, are left alone.
            kinds = {} if is_told and not takes else inspect.get_annotations(handler, eval_str=True)
            read: dict[str, Any] = {name: kinds[name] for name in takes}
            is_response = _is_response(handler.__annotations__.get("return", web.StreamResponse))
            if not is_told and not is_response:
                said["answer"] = kinds["return"]
            route = Route(
                method=method,
                path=self._prefix + path,
                handler=handler,
                summary=first,
                **said,
                **read,
            )
            if read or parts or not is_response:
                serve = _serving(handler, route, parts, read)
                route = msgspec.structs.replace(route, handler=serve)
            self.append(route)
            return handler

        return put


_READ: Final = frozenset({"query", "body"})


def _is_response(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, web.StreamResponse)


def types_in(route: Route) -> dict[str, Any]:
    """Return the type of each part of a route's path by its name, in their order."""
    return {name: route.path_types.get(name, part_of(name).kind) for name in names_in(route.path)}


def _serving(
    handler: Callable[..., Awaitable[Any]],
    route: Route,
    parts: Iterable[str],
    kinds: Mapping[str, Any],
) -> Handler:
    """Return what calls a handler with all it takes of a request, and answers what it returns."""
    types = types_in(route)
    readers = {name: path_id if types[name] is UUID else path_text for name in parts}
    may_lack_body = type(None) in get_args(kinds.get("body"))
    read_given = functools.partial(read_json, default=None) if may_lack_body else read_json

    @functools.wraps(handler)
    async def serve(request: web.Request) -> web.StreamResponse:
        given: dict[str, Any] = {}
        if "query" in kinds:
            given["query"] = read_query(request, kinds["query"])
        if "body" in kinds:
            given["body"] = await read_given(request, kinds["body"])
        for name, read in readers.items():
            given[name] = read(request, name)
        answer = await handler(request, **given)
        if isinstance(answer, web.StreamResponse):
            return answer
        if route.effect is not None and isinstance(answer, route.effect.kind):
            return route.effect.answer(request, answer)
        return json_response(answer, status=route.status)

    return serve


def shown_as(kind: Any) -> Meta:
    """Return what describes a raw value as another type: a struct, or an alias of a module."""
    return Meta(extra_json_schema={SHOWN_AS: f"{kind.__module__}:{kind.__name__}"})


def takes_repeats(route: Route) -> bool:
    """Whether a request of a user may carry an `Idempotency-Key`."""
    return route.method == hdrs.METH_POST and route.scope in OF_USERS and route.reads == (JSON,)


_MOUNTED: Final[web.AppKey[dict[web.AbstractRoute, Route]]] = web.AppKey("mounted_routes")
_RESOURCES: Final[web.AppKey[dict[str, web.Resource]]] = web.AppKey("resources_by_path")
"""One for each path, since those of paths with names in them are tried one after the other."""


def mount(app: web.Application, routes: Iterable[Route]) -> None:
    """Add the routes to the application; may be called once for each table.

    A path means the same with a slash behind it, since clients send both. HEAD is answered where
    GET is.
    """
    if _MOUNTED not in app:
        app[_MOUNTED], app[_RESOURCES] = {}, {}
    resources = app[_RESOURCES]
    for route in routes:
        handlers = {route.method: route.handler}
        if route.method == hdrs.METH_GET:
            handlers[hdrs.METH_HEAD] = _head_of(route) if route.is_stream else route.handler
        for path in (route.path, f"{route.path}/"):
            if path not in resources:
                resources[path] = app.router.add_resource(path)
            for method, handler in handlers.items():
                added = resources[path].add_route(method, handler)
                app[_MOUNTED][added] = route


class _HeadIsKnown(Exception):
    """A stream was about to begin, and its head is all that was asked for."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__()
        self.response = response


_WANTS_HEAD: Final[web.RequestKey[bool]] = web.RequestKey("wants_head", bool)


def _head_of(route: Route) -> Handler:
    """Return what answers with the head of a stream, once it is known that there is one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if hdrs.UPGRADE in request.headers:
            raise errors.BadRequest("A WebSocket is opened with GET")
        request[_WANTS_HEAD] = True
        try:
            return await route.handler(request)
        except _HeadIsKnown as exc:
            known = exc.response
        finally:
            request[_WANTS_HEAD] = False
        return web.Response(status=known.status, headers=known.headers)

    return answer


def end_head(request: web.Request, response: web.StreamResponse) -> None:
    """End a stream that is about to begin, if no more than its head was asked for."""
    if request.get(_WANTS_HEAD, False):
        raise _HeadIsKnown(response)


def mounted(app: web.Application) -> tuple[Route, ...]:
    """Return every route of the application once, in the order they were added."""
    return tuple({id(route): route for route in app.get(_MOUNTED, {}).values()}.values())


IS_ELSEWHERE: Final[web.RequestKey[bool]] = web.RequestKey("is_elsewhere", bool)
"""Whether a request is for a sandbox, whatever its path was resolved to."""
_ROUTE: Final[web.RequestKey[Route | None]] = web.RequestKey("route")
"""What `route_of` has found."""


def send_elsewhere(request: web.Request) -> None:
    """Take in that a request is for a sandbox."""
    request[IS_ELSEWHERE] = True
    request[_ROUTE] = None


def route_of(request: web.Request) -> Route | None:
    """Return the route a request was resolved to, or None if it came through no table.

    The latter is so for an unknown path, for a known one with another method, for whatever was
    added to the application past `mount`, and for what is not for this server.
    """
    try:
        return request[_ROUTE]
    except KeyError:
        found = request.app.get(_MOUNTED, {}).get(request.match_info.route)
        request[_ROUTE] = found
        return found


def query_keys(request: web.Request) -> list[str]:
    """Return the keys in the query that are looked at, wherever they count."""
    return request.query.getall(KEY_PARAMETER, [])[:MAX_QUERY_KEYS]


def is_page(request: web.Request) -> bool:
    """Whether a request was resolved to a page, or to a part of one."""
    route = route_of(request)
    return route is not None and route.is_page
