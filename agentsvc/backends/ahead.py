"""What a program imports only while it runs, and of that, what may be there before it is known for whom.

Of use to a process that has loaded the program; its forks then have less to load themselves.
"""

from typing import Final

import msgspec


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a web application whose routes can be made ahead; see `built`."""

    name: str
    """The module that makes it when it is imported."""
    make: str
    """Its function that makes another."""
    routes: str
    """Its function that adds the routes to one."""
    kin: str
    """How the names of modules begin whose objects no fork may have from here."""
    taken: dict[str, dict[str, str]]
    """By module, what it keeps of this process, and which of its functions makes that in a fork."""
    forgotten: tuple[tuple[str, str], ...]
    """Modules and their attributes that are made when they are first asked for."""
    asked_again: tuple[str, ...]
    """How the names of variables begin that are asked for in each fork."""


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Modules by name; those that are not installed are no matter."""

    loaded: tuple[str, ...] = ()
    """Imported ahead, in this order. They look neither at the home nor at what the machine is like."""
    alone: tuple[str, ...] = ()
    """Never there from ahead, by whatever way: they keep something that is right for one sandbox only."""
    called: tuple[tuple[str, str], ...] = ()
    """Modules and their functions that are called once all is loaded; what they ask for is asked again."""
    moments: tuple[tuple[str, str], ...] = ()
    """Modules and their attributes that say when the process began."""
    application: Application | None = None


AGENT_SERVER: Final = Ahead(
    loaded=(
        *("uvicorn.loops.auto", "uvicorn.loops.asyncio", "uvicorn.lifespan.on"),
        *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.wsproto_impl"),
        "fastapi.telemetry._runtime",
        "openhands.agent_server.event_router",
        "openhands.agent_server.runtime_router",
        "openhands.agent_server.workspace_router",
        *("lmnr", "posthog", "pyotp", "func_timeout"),
        # What the first question to a model imports, some of it while other threads wait for it.
        *("openai.resources.chat", "openai.lib.streaming.chat", "openai._extras"),
        *("openai._send_queue", "openai._event_handler", "httpcore", "anyio._backends._asyncio"),
        "litellm.llms.litellm_proxy.chat.transformation",
        "litellm.llms.openai_like.dynamic_config",
        "litellm.llms.openai.chat.gpt_audio_transformation",
        "litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation",
        "litellm.proxy.openai_files_endpoints.common_utils",
        "litellm.responses.mcp.chat_completions_handler",
        "litellm._service_logger",
        "litellm.litellm_core_utils.default_encoding",
        "litellm.types.litellm_core_utils.streaming_chunk_builder_utils",
        # Where it is before the browser's tools, they are right for each sandbox.
        *("agentsvc.backends.browser", "openhands.tools.browser_use.impl"),
        "agentsvc.backends.trust",
    ),
    called=(("agentsvc.backends.trust", "settle_ahead"),),
    alone=(
        # Both take services that are made of the environment.
        *("openhands.agent_server.api", "openhands.agent_server.sockets"),
    ),
    moments=(
        ("openhands.agent_server.server_details_router", "_start_time"),
        ("openhands.agent_server.server_details_router", "_last_event_time"),
    ),
    application=Application(
        name="openhands.agent_server.api",
        make="create_app",
        routes="_add_api_routes",
        kin="openhands.",
        taken={
            "openhands.agent_server.sockets": {
                "conversation_service": "get_default_conversation_service",
                "bash_event_service": "get_default_bash_event_service",
            },
            "openhands.agent_server.api": {"api": "create_app"},
        },
        forgotten=(
            ("openhands.agent_server.config", "_default_config"),
            ("openhands.agent_server.conversation_service", "_conversation_service"),
            ("openhands.agent_server.bash_service", "_bash_event_service"),
            ("openhands.agent_server.persistence.store", "_settings_store"),
            ("openhands.agent_server.persistence.store", "_secrets_store"),
        ),
        asked_again=("OH", "SESSION_API_KEY", "OPENHANDS_AGENT_SERVER_CONFIG_PATH"),
    ),
)
"""What is known of the agent server. Much of it is its browser tool's, which it looks for at each
start, also where there is no browser."""
