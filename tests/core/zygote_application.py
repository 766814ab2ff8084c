"""An application as the agent server's: made of its environment when this is imported."""

import os

from tests.core.zygote_web import Route, Web


class Settings:
    """What it reads from the environment, once."""

    def __init__(self) -> None:
        self.name = os.environ.get("PROBE_NAME", "")


class Registry:
    """What its routes are made of."""


class OtherRegistry(Registry):
    """The same for a sandbox that wants other routes."""


_settings: Settings | None = None


def get_settings() -> Settings:
    global _settings  # noqa: PLW0603  # as the agent server does
    if _settings is None:
        _settings = Settings()
    return _settings


def add_routes(app: Web) -> None:
    app.router.routes.append(Route(os.environ.get("PROBE_NAME", "")))


def create_app() -> Web:
    app = Web()
    app.state.settings = get_settings()
    is_other = app.state.settings.name == "other"
    app.state.conversation_registry = OtherRegistry() if is_other else Registry()
    add_routes(app)
    return app


app = create_app()
