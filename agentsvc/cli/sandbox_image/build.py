"""Builds and lists sandbox images with a container engine. Needs the extra `docker`."""

import contextlib
import io
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
from aiohttp import ClientError

from agentsvc.base import StartFailed
from agentsvc.cli.sandbox_image.recipe import Recipe

LABEL: Final = "org.agentsvc.recipe"

_STAGE: Final = "org.agentsvc.stage"
_STEP: Final = re.compile(r"^\s*STEP \d+(/\d+)?: |^Step \d+/\d+ : ", re.IGNORECASE)
_CREDENTIALS: Final = re.compile(r"(?<=//)[^\s/@]+@")
_LAST_LINES: Final = 12
_WIDTH: Final = 90

type Report = Callable[[str], None]


class BuiltImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an engine's store."""

    name: str
    id: str
    size_bytes: int
    fingerprint: str = ""


async def build(
    recipe: Recipe, name: str, *, engine: str | None, anew: bool, report: Report
) -> tuple[BuiltImage, bool]:
    """Return the image and whether it was built; an existing image of the same recipe is reused.

    Reports each step as it begins. Raises StartFailed with the engine's last output.
    """
    async with _connected(engine) as docker:
        found = await _find(docker, name)
        if found is not None and found.fingerprint == recipe.fingerprint and not anew:
            return found, False
        last: list[str] = []
        try:
            async for line in docker.images.build(
                fileobj=io.BytesIO(recipe.context()),
                encoding="gzip",
                path_dockerfile="Containerfile",
                tag=name,
                buildargs=recipe.arguments,
                labels={LABEL: recipe.fingerprint},
                nocache=anew,
                forcerm=True,
                stream=True,
            ):
                _collect_output(line, last, report)
        except docker.error as exc:
            raise StartFailed(
                f"the image could not be built: {_redacted(str(exc))}",
                hint="\n".join(_redacted(text) for text in last[-_LAST_LINES:]) or "see its log",
            ) from exc
        await _remove_stages(docker)
        built = await _find(docker, name)
        if built is None:
            raise StartFailed(f"the image was built, but the engine does not list it: {name}")
        return built, True


async def listed(*, engine: str | None) -> list[BuiltImage]:
    """Return the engine's images that were built from this recipe or an older one."""
    async with _connected(engine) as docker:
        found = await docker.images.list(filters={"label": [LABEL]})
        return [
            _to_built(image, name)
            for image in found
            for name in image.get("RepoTags") or ()
            if name != "<none>:<none>"
        ]


@contextlib.asynccontextmanager
async def _connected(engine: str | None) -> AsyncIterator[Any]:
    try:
        import aiodocker  # noqa: PLC0415  # an extra, and slow to import
    except ImportError as exc:
        raise StartFailed(
            "the Docker client is not installed", hint="run `pip install agentsvc[docker]`"
        ) from exc
    try:
        docker: Any = aiodocker.Docker(url=engine)
    except (AssertionError, ValueError) as exc:
        raise StartFailed("no container engine found", hint=_HINT) from exc
    docker.error = aiodocker.DockerError
    try:
        await _check(docker)
        yield docker
    except (OSError, ClientError, aiodocker.DockerError) as exc:
        raise StartFailed(f"the container engine does not respond: {exc}", hint=_HINT) from exc
    finally:
        await docker.close()


async def _check(docker: Any) -> None:
    """Raise StartFailed if the peer is not an engine, which the client library does not check."""
    try:
        await docker.version()
    except (ClientError, LookupError, TypeError, ValueError) as exc:
        raise StartFailed("the address is not that of a container engine", hint=_HINT) from exc


_HINT: Final = "start Docker or Podman, or pass its address, such as --engine unix:///run/user/1000/podman/podman.sock"


async def _find(docker: Any, name: str) -> BuiltImage | None:
    for image in await docker.images.list(filters={"reference": [name]}):
        return _to_built(image, name)
    return None


async def _remove_stages(docker: Any) -> None:
    """Remove images of build stages, whose metadata contains the URLs of indexes."""
    filters = {"dangling": ["true"], "label": [f"{_STAGE}=packages"]}
    for image in await docker.images.list(filters=filters):
        # Another build may be using it, and will remove it.
        with contextlib.suppress(docker.error):
            await docker.images.delete(image["Id"])


def _to_built(image: dict[str, Any], name: str) -> BuiltImage:
    return BuiltImage(
        name=name,
        id=image["Id"],
        size_bytes=image["Size"],
        fingerprint=(image.get("Labels") or {}).get(LABEL, ""),
    )


def _collect_output(line: dict[str, Any], last: list[str], report: Report) -> None:
    for text in str(line.get("stream", "")).splitlines():
        if _STEP.match(text):
            report(_short(_redacted(text)))
        if text.strip():
            last.append(text)


def _short(text: str) -> str:
    head = text.strip().partition(" && ")[0]
    return head if len(head) <= _WIDTH else f"{head[:_WIDTH]}…"


def _redacted(text: str) -> str:
    """Return a text without the credentials in URLs."""
    return _CREDENTIALS.sub("", text)
