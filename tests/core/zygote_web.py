"""As much of a framework for web applications as `zygote_application` needs."""

import os
from typing import Any


class State:
    """Whatever an application is given."""

    def __init__(self) -> None:
        object.__setattr__(self, "_state", {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._state[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_state"][name]
        except KeyError:
            raise AttributeError(name) from None


class Route:
    """One that notes who has first looked at it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.seen_by = 0

    def matches(self, scope: dict[str, Any]) -> None:
        assert scope["type"] == "http"
        self.seen_by = self.seen_by or os.getpid()


class APIRouter:
    """A list of routes."""

    def __init__(self, provider: object) -> None:
        self.dependency_overrides_provider = provider
        self.lifespan_context = None
        self.routes: list[Route] = []
        self._routes_version = 0

    def _mark_routes_changed(self) -> None:
        self._routes_version += 1


class Web:
    """An application."""

    def __init__(self) -> None:
        self.state = State()
        self.router = APIRouter(self)
        self.dependency_overrides: dict[Any, Any] = {}
