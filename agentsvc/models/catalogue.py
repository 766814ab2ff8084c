"""The model catalogue, read from the installed agent packages.

The files are parsed, never imported: the packages run in sandboxes only. Without the packages the
catalogue is empty.
"""

import ast
import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)

_PRICES: Final = ("litellm", "litellm/model_prices_and_context_window_backup.json")
_VERIFIED: Final = ("openhands-sdk", "openhands/sdk/llm/utils/verified_models.py")
_VERIFIED_NAME: Final = "VERIFIED_MODELS"
_MODES: Final = frozenset({"chat", "responses"})
_FAMILIES: Final = ("bedrock", "vertex_ai")
"""Providers that the model library lists under several names with a common prefix."""


class Model(Struct, frozen=True, kw_only=True):
    """A language model; settings name it `provider/name`."""

    provider: str
    name: str
    is_verified: bool


class ModelProvider(Struct, frozen=True, kw_only=True):
    """A provider of models; verified if one of its models is."""

    name: str
    is_verified: bool


class Models(Struct, frozen=True, kw_only=True):
    """The whole catalogue, verified entries first, in the order in which it is shown."""

    models: tuple[Model, ...] = ()
    providers: tuple[ModelProvider, ...] = ()


class _Entry(Struct, frozen=True, kw_only=True):
    litellm_provider: str = ""
    mode: str = ""


_NO_NAME = re.compile(r"\*|-commitment/|^ft:")
"""Keys of prices for several models, or of fine-tuned models of a user."""

type FindFile = Callable[[str, str], Path | None]

_ENTRIES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(_Entry)


def installed_file(distribution: str, path: str) -> Path | None:
    """Return a file of an installed package, or None if it does not exist."""
    try:
        found = Path(str(metadata.distribution(distribution).locate_file(path)))
    except metadata.PackageNotFoundError:
        return None
    return found if found.is_file() else None


class Catalogue:
    """Reads the catalogue on first use, and caches it."""

    def __init__(self, find_file: FindFile = installed_file) -> None:
        self._find_file = find_file
        self._models: Models | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> Models:
        """Return the catalogue; empty if the agent packages are not installed."""
        async with self._reading:
            if self._models is None:
                self._models = await asyncio.to_thread(read_models, self._find_file)
            return self._models


def read_models(find_file: FindFile = installed_file) -> Models:
    """Read the catalogue from its files; unreadable parts are left out and logged."""
    verified = _read(find_file(*_VERIFIED), _parse_verified)
    priced = _read(find_file(*_PRICES), _parse_prices)
    models = {
        (provider, name): Model(provider=provider, name=name, is_verified=True)
        for provider, names in verified.items()
        for name in names
    }
    for provider in sorted(priced):
        for name in sorted(priced[provider]):
            model = Model(provider=provider, name=name, is_verified=False)
            models.setdefault((provider, name), model)
    providers = dict.fromkeys([*verified, *sorted(priced)])
    return Models(
        models=tuple(models.values()),
        providers=tuple(
            ModelProvider(name=name, is_verified=name in verified) for name in providers
        ),
    )


type _Names = Mapping[str, Sequence[str]]


def _read(file: Path | None, parse: Callable[[bytes], _Names]) -> _Names:
    if file is None:
        return {}
    try:
        return parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError) as exc:
        log.warning("model catalogue not read", extra={"path": str(file), "reason": repr(exc)})
        return {}


def _parse_verified(source: bytes) -> _Names:
    """Parse a module that consists of lists and a dict of them."""
    lists: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.List):
            lists[name] = msgspec.convert(ast.literal_eval(value), list[str])
        elif isinstance(value, ast.Dict) and name == _VERIFIED_NAME:
            return {
                str(ast.literal_eval(key)): lists[item.id]
                for key, item in zip(value.keys, value.values, strict=True)
                if key is not None and isinstance(item, ast.Name) and item.id in lists
            }
    return {}


def _parse_prices(source: bytes) -> _Names:
    """Return the models for conversations, by provider."""
    found: dict[str, set[str]] = {}
    for key, raw in _ENTRIES.decode(source).items():
        try:
            entry = _ENTRY.decode(raw)
        except msgspec.ValidationError:
            continue
        is_wanted = entry.mode in _MODES and not _NO_NAME.search(key)
        if entry.litellm_provider and is_wanted:
            provider, name = _split(key, entry.litellm_provider)
            found.setdefault(provider, set()).add(name)
    return {provider: sorted(names) for provider, names in found.items()}


def _split(key: str, listed_under: str) -> tuple[str, str]:
    """Return provider and name of a model; the key may start with the provider or not."""
    family = next((name for name in _FAMILIES if listed_under.startswith(name)), listed_under)
    head, slash, rest = key.partition("/")
    if slash and listed_under.startswith(head):
        return head, rest
    return family, key
