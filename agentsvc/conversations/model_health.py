"""Remembers which models answered recently, so that starts need not check them again."""

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

type _Known = tuple[str, str | None, str | None, str]
"""Whose it is, model, base URL and key."""


class WatchedModel:
    """What a model says to the first requests of one conversation, where they come by here."""

    def __init__(self, upstream: Upstream | None) -> None:
        self.upstream = upstream
        self.is_good = False
        """It has answered."""
        self.trouble = ""
        """Why it could not be asked; empty if it could."""
        self._news = asyncio.Event()

    def report(self, trouble: str) -> None:
        """Say that the model has answered, or why it could not be asked."""
        self.is_good, self.trouble = not trouble, trouble
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait until something is told, or for so long."""
        await wait_within(self._news, seconds)
        self._news.clear()


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    upstream: Upstream | None


class ModelHealth:
    """Which models have answered, so that not each start has to find out."""

    def __init__(self) -> None:
        self._answered: dict[_Known, _Answered] = {}
        self._watched: defaultdict[str, list[WatchedModel]] = defaultdict(list)

    @contextlib.contextmanager
    def watching(self, conversation_id: str, model: Llm) -> Iterator[WatchedModel]:
        """Hear what that model says in a conversation."""
        watched = WatchedModel(upstream_of(model))
        self._watched[conversation_id].append(watched)
        try:
            yield watched
        finally:
            self._watched[conversation_id].remove(watched)
            if not self._watched[conversation_id]:
                del self._watched[conversation_id]

    def note_answer(self, conversation_id: str, upstream: Upstream, trouble: str = "") -> None:
        """Note that a model has answered in a conversation, or why it could not be asked."""
        if trouble:
            self.note_refusal(upstream)
        for watched in self._watched.get(conversation_id, ()):
            if watched.upstream == upstream:
                watched.report(trouble)

    def note_refusal(self, upstream: Upstream) -> None:
        """Note that a model does not answer as it did."""
        for known in [one for one, last in self._answered.items() if last.upstream == upstream]:
            del self._answered[known]

    def trust(self, user_id: str, model: Llm) -> None:
        """Note that a model has just answered somebody."""
        known = _known(user_id, model)
        self._answered.pop(known, None)
        self._answered[known] = _Answered(at=monotonic(), upstream=upstream_of(model))
        if len(self._answered) > _TRUSTED_MAX:
            del self._answered[next(iter(self._answered))]

    def is_trusted(self, user_id: str, model: Llm) -> bool:
        """Say whether a model has answered somebody of late, and was not heard to refuse since."""
        last = self._answered.get(_known(user_id, model))
        return last is not None and monotonic() - last.at < _TRUSTED_SECONDS


def _known(user_id: str, model: Llm) -> _Known:
    key = model.api_key.reveal() if model.api_key else ""
    return user_id, model.model, model.base_url, key
