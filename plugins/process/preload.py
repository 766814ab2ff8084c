"""Preloads the agent server in the fork server, and sets it up for its sandbox in each fork.

Imported by `programs.warm`, which calls `load` before it forks, and `set_up` in each fork once that
has the environment of its sandbox. Uses only public names of the agent server, FastAPI and uvicorn;
`agentsvc/docs/explanation/fork-server.md` says what each part saves. If a new version of these
packages breaks it, `tests/live/test_preload.py` fails.
"""

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from types import ModuleType
from typing import Any, Final

_AGENT_SERVER: Final = "openhands.agent_server"
_API: Final = f"{_AGENT_SERVER}.api"

READ_AGAIN: Final = ("OH_", "SESSION_API_KEY", "OPENHANDS_AGENT_SERVER_CONFIG_PATH")
"""Prefixes of the variables that the agent server reads when its application is created."""

_DEFAULTS: Final = (
    (f"{_AGENT_SERVER}.config", "get_default_config"),
    (f"{_AGENT_SERVER}.bash_service", "get_default_bash_event_service"),
    (f"{_AGENT_SERVER}.conversation_service", "get_default_conversation_service"),
)
"""Modules with functions that cache what they derive from the environment at the first call."""

_LATER: Final = (
    *("uvicorn.loops.auto", "uvicorn.loops.asyncio"),
    *("httpcore", "openai.resources", "openai.lib.streaming.chat"),
    "litellm.integrations.prometheus_services",
    "litellm.llms.litellm_proxy.chat.transformation",
    "litellm.llms.openai.chat.gpt_audio_transformation",
    "litellm.llms.openai_like.dynamic_config",
    "litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation",
    "litellm.proxy.openai_files_endpoints.common_utils",
    "litellm.responses.mcp.chat_completions_handler",
    "litellm.types.litellm_core_utils.streaming_chunk_builder_utils",
)
"""Modules that are imported late: when the agent server lists its tools, with or without a browser,
when it starts to listen, and at the first request to a model."""

_DEFERRED_MODELS: Final = (
    *("litellm.types.utils", "openai.types.chat", "openai.types.completion_usage"),
    "openhands.sdk.settings",
)
"""Prefixes of modules whose Pydantic models are otherwise built at first use."""

_BROWSER_TOOLS: Final = "openhands.tools.browser_use.impl"
_BROWSER: Final = "openhands.tools.browser_use.server"

_NOWHERE: Final = {
    "type": "http",
    "method": "GET",
    "path": "/-",
    "root_path": "",
    "path_params": {},
    "query_string": b"",
    "headers": [],
}
"""A request that matches no route."""


def load() -> None:
    """Import everything that is the same for every sandbox, and build the table of routes."""
    # If the root logger has a handler, the agent server does not add its own, which formats each
    # line for a terminal.
    logging.basicConfig(format="%(levelname)-8s %(name)s: %(message)s")
    with _without_defaults():
        api: Any = importlib.import_module(_API)
    importlib.import_module(f"{_AGENT_SERVER}.__main__")
    for make in (_defer_browser, _defer_tokenizer, _create_action_types):
        # A renamed module or attribute only costs memory.
        with contextlib.suppress(ImportError, AttributeError):
            make()
    for name in _LATER:
        # A missing module only costs time.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _build_models()
    anyio: Any = importlib.import_module("anyio")
    anyio.run(anyio.sleep, 0)
    # This imports the protocols.
    sys.modules["uvicorn"].Config(api.api, ws="wsproto", log_config=None).load()
    for route in api.api.routes:
        # A route completes itself at the first match.
        route.matches(dict(_NOWHERE))


def set_up() -> None:
    """Create the application from the present environment, with the routes built before."""
    sys.modules[f"{_AGENT_SERVER}.server_details_router"].update_last_execution_time()
    api: Any = sys.modules[_API]
    ahead = api.api
    with _without_routes():
        app = api.create_app()
    if type(app.state.conversation_registry) is not type(ahead.state.conversation_registry):
        # Another registry type means other routes.
        api.api = api.create_app()
        return
    own = {getattr(route, "path", None) for route in app.routes}
    app.router.routes.extend(
        route for route in ahead.routes if getattr(route, "path", "") not in own
    )
    api.api = app


def _defer_browser() -> None:
    """Import the browser tools without the browser driver, which listing tools does not need."""
    stand_in: Any = ModuleType(_BROWSER)
    stand_in.CustomBrowserUseServer = _Browser
    sys.modules[_BROWSER] = stand_in
    try:
        executor: Any = importlib.import_module(_BROWSER_TOOLS).BrowserToolExecutor
    finally:
        del sys.modules[_BROWSER]
    cleanup = executor.cleanup

    async def clean_up(self: Any) -> None:
        if _BROWSER in sys.modules:
            await cleanup(self)

    executor.cleanup = clean_up


class _Browser:
    """Stand-in for the browser server, imported and created at first use."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    @cached_property
    def _server(self) -> Any:
        return importlib.import_module(_BROWSER).CustomBrowserUseServer(**self._options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


def _defer_tokenizer() -> None:
    """Defer loading the tokenizer, which is passed with each model request, until it is used."""
    tiktoken: Any = importlib.import_module("tiktoken")
    get_encoding = tiktoken.get_encoding

    def name_it(self: Any, name: str) -> None:
        self.name = name

    def fill(self: Any, name: str) -> Any:
        vars(self).update(vars(get_encoding(self.name)))
        return object.__getattribute__(self, name)

    methods = {"__init__": name_it, "__getattr__": fill}
    tiktoken.get_encoding = type("Encoding", (tiktoken.Encoding,), methods)
    try:
        importlib.import_module("litellm.litellm_core_utils.default_encoding")
    finally:
        tiktoken.get_encoding = get_encoding
    # The data exists as text as well, and only that is used.
    vars(sys.modules["litellm.utils"]).pop("json_data", None)


def _create_action_types() -> None:
    """Create the action types that the first model request would create, with risk and summary."""
    schema: Any = importlib.import_module("openhands.sdk.tool.schema")
    builtins: Any = importlib.import_module("openhands.sdk.tool.builtins")
    models: Any = importlib.import_module("openhands.sdk.utils.models")
    actions = list(models.get_known_concrete_subclasses(schema.Action))
    (reading,) = builtins.FinishTool.create()
    # Read-only tools get no risk prediction.
    for tool in (reading, reading.model_copy(update={"annotations": None})):
        for action in actions:
            tool.to_openai_tool(add_security_risk_prediction=True, action_type=action)


def _build_models() -> None:
    """Build the Pydantic models that were deferred."""
    models: list[Any] = [importlib.import_module("pydantic").BaseModel]
    for model in models:
        models += model.__subclasses__()
        if model.__module__.startswith(_DEFERRED_MODELS):
            model.model_rebuild(raise_errors=False)


@contextlib.contextmanager
def _without_defaults() -> Iterator[None]:
    """Import modules without reading the environment or caching defaults."""
    config: Any = importlib.import_module(f"{_AGENT_SERVER}.config")

    def default_config() -> Any:
        return config.Config(session_api_keys=[], secret_key=None)

    def no_service() -> None:
        return None

    replaced: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for module_name, name in _DEFAULTS:
        module = importlib.import_module(module_name)
        other = default_config if module is config else no_service
        replaced[name] = (getattr(module, name), other)
        setattr(module, name, other)
    try:
        yield
    finally:
        for module in list(sys.modules.values()):
            for name, (original, other) in replaced.items():
                if getattr(module, "__dict__", {}).get(name) is other:
                    setattr(module, name, original)


@contextlib.contextmanager
def _without_routes() -> Iterator[None]:
    """Replace `include_router` by a no-op within the context."""
    fastapi: Any = sys.modules["fastapi"]
    before = [(kind, kind.include_router) for kind in (fastapi.FastAPI, fastapi.APIRouter)]
    for kind, _ in before:
        kind.include_router = _include_nothing
    try:
        yield
    finally:
        for kind, include in before:
            kind.include_router = include


def _include_nothing(*_: object, **__: object) -> None:
    """Stand in for `include_router`."""
