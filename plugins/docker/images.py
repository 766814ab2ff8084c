"""Images of an engine: inspects them, and pulls missing ones with progress reports.

A pull may take longer than a call; it runs in the background, once per engine and image, and
callers get its progress in a retryable error.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import IO, Any

from agentsvc.base import AgentsvcError, BackendUnavailable, OrderRejected, monotonic
from agentsvc.plugin import LongTasks, StillFetching

from .engine import Engine, Explain, registry_login
from .failures import from_pull, one_line
from .plan import ImageInfo, Json, to_image
from .settings import DockerConfig

_MEGABYTE = 1_000_000
_QUIET_SECONDS = 60.0
"""After this time without news from the engine, a pull no longer counts as progressing."""
_LOADING = "Downloading"
_DONE = ("Pull complete", "Already exists", "Download complete")


class Progress:
    """The progress of one pull, from the engine's messages about each layer."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}
        self._heard_at = monotonic()

    @property
    def is_recent(self) -> bool:
        """Whether the engine has reported progress recently."""
        return monotonic() - self._heard_at < _QUIET_SECONDS

    def take(self, news: Json) -> None:
        """Process one message of the engine."""
        self._heard_at = monotonic()
        layer, status = news.get("id"), str(news.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        detail = news.get("progressDetail")
        current, total = self._layers.get(str(layer), (0, 0))
        if status == _LOADING and isinstance(detail, dict):
            current, total = _bytes(detail, "current", 0), _bytes(detail, "total", total)
        elif status in _DONE:
            total = max(total, 1)
            current = total
        self._layers[str(layer)] = (current, total)

    def __str__(self) -> str:
        done = sum(current for current, _ in self._layers.values())
        total = sum(total for _, total in self._layers.values())
        parts = sum(total > 0 and current >= total for current, total in self._layers.values())
        if not self._layers:
            return "asking the registry"
        return (
            f"{parts} of {len(self._layers)} layers,"
            f" {done / _MEGABYTE:.1f} of {total / _MEGABYTE:.1f} MB"
        )


class ImagePulls:
    """The running pulls."""

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._fetches = LongTasks()
        self._progress: dict[str, Progress] = {}

    async def close(self) -> None:
        """Cancel every pull; the engine keeps the layers it has."""
        await self._fetches.close()

    async def get(self, engine: Engine, name: str) -> ImageInfo:
        """Return an image, pulling it if necessary.

        While that takes longer than `pull_wait_seconds`, raise StillFetching with the progress, or
        BackendUnavailable if there was none for a while.
        """
        pull = self._config.pull
        # For an invalid name, the pull has the better error message.
        found = await engine.ask("GET", f"images/{name}/json", expect=(400, 404))
        if found is not None and pull != "always":
            if (key := _key(engine, name)) not in self._fetches:
                # Nobody waited for the end of the pull that fetched it.
                await self._fetches.abandon(key)
            return to_image(found)
        if pull == "never":
            raise OrderRejected(
                f"The engine has no image `{name}`, and `pull` is `never`: put it there"
            )
        await self._fetch(engine, name)
        found = await engine.get(f"images/{name}/json")
        if found is None:
            raise BackendUnavailable(f"The image `{name}` was pulled but is missing")
        return to_image(found)

    async def _fetch(self, engine: Engine, name: str) -> None:
        key, wait_seconds = _key(engine, name), self._config.pull_wait_seconds

        def begin() -> Coroutine[Any, Any, None]:
            self._progress[key] = Progress()
            return self._pull(engine, name, key)

        try:
            await self._fetches.go_on(key, begin, wait_seconds=wait_seconds)
        except StillFetching as exc:
            progress = self._progress[key]
            kind = StillFetching if progress.is_recent else BackendUnavailable
            raise kind(f"The image `{name}` is being pulled: {progress}") from exc

    async def _pull(self, engine: Engine, name: str, key: str) -> None:
        def explain(_status: int, message: str) -> AgentsvcError:
            return from_pull(name, message)

        try:
            login = await asyncio.to_thread(read_login, self._config.auth_file, name)
            headers = {"X-Registry-Auth": login} if login else {}
            query = to_query(name)
            async for news in work(engine, "images/create", query, explain, headers=headers):
                self._progress[key].take(news)
        finally:
            del self._progress[key]


async def work(
    engine: Engine,
    path: str,
    query: Json,
    explain: Explain,
    *,
    headers: Mapping[str, str],
    data: IO[bytes] | None = None,
) -> AsyncIterator[Json]:
    """Run a long request of an engine and yield its messages; `explain` maps its errors."""
    async with engine.stream(
        "POST", path, params=query, data=data, headers=headers, explain=explain
    ) as answer:
        assert answer is not None  # noqa: S101  # no status was expected
        async for line in answer.content:
            news = to_news(line)
            yield news
            if problem := news.get("error"):
                raise explain(answer.status, str(problem))


def _key(engine: Engine, name: str) -> str:
    return f"{engine.name} {name}"


def to_news(line: bytes) -> Json:
    """Decode one message of a pull; raises BackendUnavailable if it is malformed."""
    if not line.strip():
        return {}
    try:
        news = json.loads(line)
    except ValueError:
        news = None
    if not isinstance(news, dict):
        raise BackendUnavailable(
            "The engine reports the progress of an image pull in a form that cannot be read",
            detail=one_line(line.decode(errors="replace")),
        )
    return news


def read_login(auth_file: str, image: str) -> str:
    """Return the X-Registry-Auth header for an image, or an empty string. Blocks."""
    if not auth_file:
        return ""
    try:
        return registry_login(Path(auth_file).expanduser().read_text(encoding="utf-8"), image)
    except OSError as exc:
        raise OrderRejected(
            f"The file with registry logins cannot be read: {exc.strerror}", detail=auth_file
        ) from exc
    except (ValueError, AttributeError, TypeError) as exc:
        raise OrderRejected(
            "The file with registry logins is not one that `docker login` wrote", detail=auth_file
        ) from exc


def _bytes(detail: Json, name: str, otherwise: int) -> int:
    found = detail.get(name)
    return found if isinstance(found, int) and found > 0 else otherwise


def to_query(image: str) -> dict[str, str]:
    """Return the query that pulls exactly this image: a name without a tag would mean all tags."""
    last = image.rpartition("/")[2]
    tag = {} if ":" in last or "@" in last else {"tag": "latest"}
    return {"fromImage": image, **tag}
