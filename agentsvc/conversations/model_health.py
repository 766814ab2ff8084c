"""A cache of the models that answered recently, so that starts need not check them again."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import msgspec

from agentsvc.base import monotonic, wait_within
from agentsvc.domain import Llm
from agentsvc.models import Upstream, upstream_of

_TRUSTED_SECONDS: Final = 600.0
_TRUSTED_MAX: Final = 1000

type _CacheKey = tuple[str, str | None, str | None, str]
"""Cache key: user id, model name, base URL and API key."""


class WatchedModel:
    """The first responses of a model to one conversation, as seen by the model proxy."""

    def __init__(self, upstream: Upstream | None) -> None:
        self.upstream = upstream
        self.is_good = False
        """Whether the model has answered."""
        self.trouble = ""
        """Why the model could not be reached; empty otherwise."""
        self._reported = asyncio.Event()

    def report(self, trouble: str) -> None:
        """Report that the model has answered, or with `trouble` why it could not be reached."""
        self.is_good, self.trouble = not trouble, trouble
        self._reported.set()

    async def wait(self, seconds: float) -> None:
        """Wait for the next report, for at most this long."""
        await wait_within(self._reported, seconds)
        self._reported.clear()


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    upstream: Upstream | None


class ModelHealth:
    """The models that have answered lately, and the watches of first responses."""

    def __init__(self) -> None:
        self._answered: dict[_CacheKey, _Answered] = {}
        self._watched: defaultdict[str, list[WatchedModel]] = defaultdict(list)

    @contextlib.contextmanager
    def watching(self, conversation_id: str, model: Llm) -> Iterator[WatchedModel]:
        """Watch the responses of a model in a conversation inside the context."""
        watched = WatchedModel(upstream_of(model))
        self._watched[conversation_id].append(watched)
        try:
            yield watched
        finally:
            self._watched[conversation_id].remove(watched)
            if not self._watched[conversation_id]:
                del self._watched[conversation_id]

    def note_answer(self, conversation_id: str, upstream: Upstream, trouble: str = "") -> None:
        """Report to the watches of a conversation that a model has answered, or its trouble."""
        if trouble:
            self.note_refusal(upstream)
        for watched in self._watched.get(conversation_id, ()):
            if watched.upstream == upstream:
                watched.report(trouble)

    def note_refusal(self, upstream: Upstream) -> None:
        """Remove a model from the cache for all users."""
        for key in [key for key, last in self._answered.items() if last.upstream == upstream]:
            del self._answered[key]

    def trust(self, user_id: str, model: Llm) -> None:
        """Store that a model has just answered a user."""
        key = _cache_key(user_id, model)
        self._answered.pop(key, None)
        self._answered[key] = _Answered(at=monotonic(), upstream=upstream_of(model))
        if len(self._answered) > _TRUSTED_MAX:
            del self._answered[next(iter(self._answered))]

    def is_trusted(self, user_id: str, model: Llm) -> bool:
        """Return whether a model has answered a user lately, without a refusal since."""
        last = self._answered.get(_cache_key(user_id, model))
        return last is not None and monotonic() - last.at < _TRUSTED_SECONDS


def _cache_key(user_id: str, model: Llm) -> _CacheKey:
    key = model.api_key.reveal() if model.api_key else ""
    return user_id, model.model, model.base_url, key
