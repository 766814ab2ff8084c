"""What a program imports only while it runs, and of that, what may be there before it is known for whom.

Of use to a process that has loaded the program; its forks then have less to load themselves.
"""

from typing import Final

import msgspec


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Modules by name; those that are not installed are no matter."""

    loaded: tuple[str, ...] = ()
    """Imported ahead, in this order. They look neither at the home nor at what the machine is like."""
    alone: tuple[str, ...] = ()
    """Never imported ahead, by whatever way: they keep something that is right for one sandbox only."""


AGENT_SERVER: Final = Ahead(
    loaded=(
        *("uvicorn.loops.auto", "uvicorn.loops.asyncio", "uvicorn.lifespan.on"),
        *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.wsproto_impl"),
        "fastapi.telemetry._runtime",
        *("lmnr", "posthog", "pyotp", "func_timeout"),
        *("cdp_use.cdp.library", "cdp_use.cdp.registry", "cdp_use.cdp.registration_library"),
        *("browser_use.browser.events", "browser_use.dom.service"),
        *("browser_use.dom.markdown_extractor", "browser_use.filesystem.file_system"),
        *("browser_use.llm.openai.chat", "browser_use.llm.aws.chat_bedrock"),
        *(
            "browser_use.tokens.service",
            "browser_use.tools.views",
            "browser_use.agent.cloud_events",
        ),
    ),
    alone=(
        # Both take services that are made of the environment.
        *("openhands.agent_server.api", "openhands.agent_server.event_router"),
        # It finds out whether it runs in a container, and makes a directory for downloads.
        "browser_use.browser.profile",
    ),
)
"""What is known of the agent server. Nearly all of it is its browser tool's, which it looks for at
each start, also where there is no browser."""
