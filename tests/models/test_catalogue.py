"""The catalogue of language models: read from files, and never more than that."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentsvc.models.catalogue import (
    Catalogue,
    Model,
    ModelProvider,
    Models,
    installed_file,
    read_models,
)

VERIFIED = '''
"""Lists."""
ONES = ["a-1", "a-2"]
OTHERS = ["b-1"]
COUNT = 3

VERIFIED_MODELS = {"own": ONES, "alpha": OTHERS, "none": ABSENT, **MORE}
'''
PRICES = {
    "sample_spec": {"litellm_provider": "one of the providers", "mode": "one of the modes"},
    "b-1": {"litellm_provider": "alpha", "mode": "chat"},
    "alpha/b-2": {"litellm_provider": "alpha", "mode": "responses"},
    "alpha/eu/b-3": {"litellm_provider": "alpha", "mode": "chat"},
    "picture": {"litellm_provider": "alpha", "mode": "image_generation"},
    "vertex_ai/v-1": {"litellm_provider": "vertex_ai-language-models", "mode": "chat"},
    "anthropic.c-1": {"litellm_provider": "bedrock_converse", "mode": "chat"},
    "bedrock/*/1-month-commitment/c": {"litellm_provider": "bedrock", "mode": "chat"},
    "ft:b-1": {"litellm_provider": "alpha", "mode": "chat"},
    "no provider": {"mode": "chat"},
    "odd": 5,
}

type FindFile = Callable[[str, str], Path | None]


@pytest.fixture
def find_file(tmp_path: Path) -> FindFile:
    verified, prices = tmp_path / "verified_models.py", tmp_path / "prices.json"
    verified.write_text(VERIFIED)
    prices.write_text(json.dumps(PRICES))
    return lambda _, path: verified if path.endswith(".py") else prices


def names(models: Models, provider: str) -> list[str]:
    return [model.name for model in models.models if model.provider == provider]


def test_verified_models_come_first_in_their_order(find_file: FindFile) -> None:
    models = read_models(find_file)
    assert models.models[:3] == (
        Model(provider="own", name="a-1", is_verified=True),
        Model(provider="own", name="a-2", is_verified=True),
        Model(provider="alpha", name="b-1", is_verified=True),
    )
    assert models.providers == (
        ModelProvider(name="own", is_verified=True),
        ModelProvider(name="alpha", is_verified=True),
        ModelProvider(name="bedrock", is_verified=False),
        ModelProvider(name="vertex_ai", is_verified=False),
    )


def test_the_others_follow_without_what_cannot_hold_a_conversation(find_file: FindFile) -> None:
    models = read_models(find_file)
    assert names(models, "alpha") == ["b-1", "b-2", "eu/b-3"]
    assert names(models, "vertex_ai") == ["v-1"]
    assert names(models, "bedrock") == ["anthropic.c-1"]


def test_without_the_packages_the_catalogue_is_empty() -> None:
    assert read_models(lambda *_: None) == Models()
    assert installed_file("no-such-distribution", "x.json") is None
    assert installed_file("aiohttp", "no/such/file.json") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"VERIFIED_MODELS = 5", b"A = [5]"])
def test_files_that_cannot_be_read_leave_it_empty(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert read_models(lambda *_: file) == Models()
    assert "model catalogue not read" in caplog.text


async def test_the_files_are_read_once(find_file: FindFile) -> None:
    asked: list[str] = []

    def counting(distribution: str, path: str) -> Path | None:
        asked.append(path)
        return find_file(distribution, path)

    catalogue = Catalogue(counting)
    assert asked == []
    assert await catalogue.get() is await catalogue.get()
    assert len(asked) == 2


def test_reading_imports_nothing_of_the_packages() -> None:
    code = (
        "import sys; from agentsvc.models.catalogue import read_models;"
        "print(len(read_models().models), *sorted({n.partition('.')[0] for n in sys.modules}))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(output[0]) > 100
    assert not {"openhands", "litellm"} & set(output[1:])
