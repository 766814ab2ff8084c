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
"""Error text for read-only callers of a route that changes something."""

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scope(StrEnum):
    """The kind of key that a route requires; the texts below appear in the OpenAPI document."""

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
    """Needs the model token of a conversation, which its sandbox holds."""
    PASS = "pass"  # noqa: S105  # the kind of key, not a key
    """Needs the signed pass for one secret, which a sandbox got from this server."""


OF_USERS: Final = frozenset({Scope.READ, Scope.RUN, Scope.MANAGE, Scope.ADMIN_READ, Scope.ADMIN})
"""The scopes of routes that accept a user's key."""


def check_scope(scope: Scope, caller: Principal) -> None:
    """Raise NotAllowed if the caller lacks the permissions of a scope."""
    if scope in (Scope.ADMIN, Scope.ADMIN_READ) and not caller.is_admin:
        raise errors.NotAllowed("This is for administrators")
    if scope in (Scope.RUN, Scope.MANAGE, Scope.ADMIN) and not caller.may_run:
        raise errors.NotAllowed(READS_ONLY)
    if scope in (Scope.MANAGE, Scope.ADMIN) and not caller.may_manage:
        raise errors.NotAllowed("This needs a key of the scope `admin`")


class Undescribed:
    """Placeholder type of an undeclared response; a test rejects routes that have it."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """Query and body of a valid request; path parameters have shared examples."""

    query: Mapping[str, Any] = {}
    body: Any = UNSET


JSON: Final = "application/json"
type Respond = Callable[[web.Request, Any], web.Response]
type GoOn = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The type of the object that an operation creates, and the response to send for it.

    The service records the object in its transaction (`note_effect`), so that the response is
    stored with it and a repeated request gets the same response.
    """

    kind: type
    answer: Respond
    status: int = HTTPStatus.OK
    show: Callable[[Any], Any] | None = None
    """Function that returns the response body and is annotated with its type, if there is one."""


def effect_of[T](kind: type[T], show: Callable[[T], Any], *, status: int = HTTPStatus.OK) -> Effect:
    """Return the effect of an operation that creates an object and responds with `show(object)`.

    By default, the route takes its status from here and its response type from the annotation of
    `show`.
    """
    return Effect(
        kind=kind,
        answer=lambda _, made: json_response(show(made), status=status),
        status=status,
        show=show,
    )


def _type_of(effect: Effect) -> Any:
    """Return the annotated return type of `show`, evaluated if it is a string."""
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
"""Errors of operations that call the agent server of a conversation."""
OF_GIT_PROVIDERS: Final = (
    errors.BadRequest,
    errors.NotAuthenticated,
    errors.NotAllowed,
    errors.NotFound,
    errors.GitProviderRateLimited,
    errors.GitProviderUnavailable,
)
"""Errors of operations that call git providers."""
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
"""Errors of operations that change the target of a sandbox."""
OF_STARTS: Final = (
    errors.BadRequest,
    errors.NotFound,
    errors.Conflict,
    errors.OrderRejected,
    errors.QuotaExceeded,
    errors.SandboxLimitReached,
    errors.BackendUnavailable,
)
"""Errors of operations that start a conversation."""

EXAMPLE_ID: Final = "7c9e6679742540de944be07fc1f90ae7"
"""Id of a conversation, and of objects related to one, in examples."""

KEY_PARAMETER: Final = "session_api_key"
"""Query parameter that may carry the key of a stream."""

MAX_QUERY_KEYS: Final = 8
"""Most query keys checked per request, as any unauthenticated caller can cause the checks."""

SERVICE_HEADER: Final = "X-Service-API-Key"
"""Key header of the routes on which a service creates API keys for users."""

LOGIN_HEADER: Final = "X-Agentsvc-Login"
"""Header with the page token of a browser's login."""

LOGIN_PATH: Final = "/login"
"""Path of the login page."""

SHOWN_AS: Final = "x-shown-as"
"""Schema extension that names the type of a raw value which is decoded later."""


class Socket(msgspec.Struct, frozen=True, kw_only=True):
    """A Socket.IO connection that publishes the same data as an operation, live.

    `query` is the type of the connection's query; `sent` and `taken` are the argument types of the
    events that the server emits and accepts, by event name.
    """

    path: str
    summary: str
    text: str
    query: type[msgspec.Struct]
    sent: Mapping[str, tuple[Any, ...]]
    taken: Mapping[str, tuple[Any, ...]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: method and path, required scope, request and response types.

    `path_types` overrides the types of path parameters (`path_parts`). `body` and `query` are the
    types that its handler decodes, or None; `reads` lists the media types of the body. `answer` is
    the type of a successful response, which has `status` and the media type `media`; None if no
    response is successful. `errors` are the error classes that do not follow from the other fields.

    `accepted` documents when the response is 202 without a body instead.

    `effect` is the object it creates; without an effect, a retry after a crash must have the same
    result. `goes_on` responds to a repeated request whose stream was cut off, given the stored
    response.

    `key_header` is a further header that may carry its key.

    A stream (`is_stream`) is exempt from the time limit of requests; `message` is the type of its
    messages if it is no JSON, and `socket` is its equivalent over Socket.IO. A page (`is_page`) is
    opened by a browser: its key may also be the password of HTTP Basic authentication. If
    `takes_query_key`, the key may be in the query or in the first message of a WebSocket, since
    browsers cannot set headers on every request. `rank` is ignored; older plugins may pass it.
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
    """Keyword arguments of a `Route` beside its method, path and summary."""

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
    """A table of routes that decorated handlers are added to.

    All paths start with its prefix, and its keyword arguments are the defaults of all routes.
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
        """Decorate the handler of an operation; the summary defaults to its docstring's first line.

        The default scope is READ for GET and RUN for other methods. An example is the query of a
        GET request and the body of any other. Parameters `query` and `body` of the handler are
        decoded by their annotations, and path parameters are passed by name: a UUID as 32 hex
        digits, any other as text. A body is optional if its annotation allows None. A handler
        returns a response, or a value of the annotated type to send as JSON, or the object of its
        effect.
        """
        is_get = method == hdrs.METH_GET
        args: dict[str, Any] = {
            "scope": Scope.READ if is_get else Scope.RUN,
            "answer": answer,
            **self._common,
            **described,
        }
        if (effect := args.get("effect")) is not None:
            args.setdefault("status", effect.status)
            args["answer"] = _type_of(effect) if args["answer"] is Undescribed else args["answer"]
        if "example" in args and not isinstance(args["example"], Example):
            args["example"] = Example(**{"query" if is_get else "body": args["example"]})

        def decorate(handler: H) -> H:
            first = summary or (handler.__doc__ or "").partition("\n")[0].removesuffix(".")
            is_set = args["answer"] is not Undescribed
            takes = _READ & handler.__annotations__.keys()
            parts = [
                name for name in names_in(self._prefix + path) if name in handler.__annotations__
            ]
            # Older plugins declare everything in `add`: do not evaluate their annotations.
            kinds = {} if is_set and not takes else inspect.get_annotations(handler, eval_str=True)
            read: dict[str, Any] = {name: kinds[name] for name in takes}
            is_response = _is_response(handler.__annotations__.get("return", web.StreamResponse))
            if not is_set and not is_response:
                args["answer"] = kinds["return"]
            route = Route(
                method=method,
                path=self._prefix + path,
                handler=handler,
                summary=first,
                **args,
                **read,
            )
            if read or parts or not is_response:
                serve = _wrap(handler, route, parts, read)
                route = msgspec.structs.replace(route, handler=serve)
            self.append(route)
            return handler

        return decorate


_READ: Final = frozenset({"query", "body"})


def _is_response(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, web.StreamResponse)


def types_in(route: Route) -> dict[str, Any]:
    """Return the types of a route's path parameters by name, in their order."""
    return {name: route.path_types.get(name, part_of(name).kind) for name in names_in(route.path)}


def _wrap(
    handler: Callable[..., Awaitable[Any]],
    route: Route,
    parts: Iterable[str],
    kinds: Mapping[str, Any],
) -> Handler:
    """Wrap a handler: decode its arguments from the request and encode the value it returns."""
    types = types_in(route)
    readers = {name: path_id if types[name] is UUID else path_text for name in parts}
    may_lack_body = type(None) in get_args(kinds.get("body"))
    read_body = functools.partial(read_json, default=None) if may_lack_body else read_json

    @functools.wraps(handler)
    async def serve(request: web.Request) -> web.StreamResponse:
        given: dict[str, Any] = {}
        if "query" in kinds:
            given["query"] = read_query(request, kinds["query"])
        if "body" in kinds:
            given["body"] = await read_body(request, kinds["body"])
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
    """Return metadata that documents a raw value as another type: a struct or a type alias."""
    return Meta(extra_json_schema={SHOWN_AS: f"{kind.__module__}:{kind.__name__}"})


def takes_repeats(route: Route) -> bool:
    """Whether a request of a user may carry an `Idempotency-Key`."""
    return route.method == hdrs.METH_POST and route.scope in OF_USERS and route.reads == (JSON,)


_MOUNTED: Final[web.AppKey[dict[web.AbstractRoute, Route]]] = web.AppKey("mounted_routes")
_RESOURCES: Final[web.AppKey[dict[str, web.Resource]]] = web.AppKey("resources_by_path")
"""One resource per path, because aiohttp tries those with path parameters one by one."""


def mount(app: web.Application, routes: Iterable[Route]) -> None:
    """Add routes to the application; can be called repeatedly.

    Each path is also added with a trailing slash, because clients send both. GET routes also accept
    HEAD.
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


class _HeadReady(Exception):
    """Aborts the handler of a HEAD request before its stream begins."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__()
        self.response = response


_WANTS_HEAD: Final[web.RequestKey[bool]] = web.RequestKey("wants_head", bool)


def _head_of(route: Route) -> Handler:
    """Return a HEAD handler for a stream: run the GET handler up to the start of the stream."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if hdrs.UPGRADE in request.headers:
            raise errors.BadRequest("A WebSocket is opened with GET")
        request[_WANTS_HEAD] = True
        try:
            return await route.handler(request)
        except _HeadReady as exc:
            known = exc.response
        finally:
            request[_WANTS_HEAD] = False
        return web.Response(status=known.status, headers=known.headers)

    return answer


def end_head(request: web.Request, response: web.StreamResponse) -> None:
    """Abort a stream that is about to begin if the request is a HEAD request."""
    if request.get(_WANTS_HEAD, False):
        raise _HeadReady(response)


def mounted(app: web.Application) -> tuple[Route, ...]:
    """Return every mounted route once, in the order of mounting."""
    return tuple({id(route): route for route in app.get(_MOUNTED, {}).values()}.values())


IS_FOR_SANDBOX: Final[web.RequestKey[bool]] = web.RequestKey("is_elsewhere", bool)
"""Whether a request is proxied to a sandbox, whatever route its path resolved to."""
_ROUTE: Final[web.RequestKey[Route | None]] = web.RequestKey("route")
"""Cached result of `route_of`."""


def mark_for_sandbox(request: web.Request) -> None:
    """Mark a request as one for a sandbox, so that no route applies to it."""
    request[IS_FOR_SANDBOX] = True
    request[_ROUTE] = None


def route_of(request: web.Request) -> Route | None:
    """Return the mounted route that a request resolved to, or None.

    None for an unknown path, a known path with another method, a handler that was added without
    `mount`, and a request for a sandbox.
    """
    try:
        return request[_ROUTE]
    except KeyError:
        found = request.app.get(_MOUNTED, {}).get(request.match_info.route)
        request[_ROUTE] = found
        return found


def query_keys(request: web.Request) -> list[str]:
    """Return up to `MAX_QUERY_KEYS` keys in the query, whether or not the route takes them."""
    return request.query.getall(KEY_PARAMETER, [])[:MAX_QUERY_KEYS]


def is_page(request: web.Request) -> bool:
    """Whether a request resolved to a route with `is_page`."""
    route = route_of(request)
    return route is not None and route.is_page
