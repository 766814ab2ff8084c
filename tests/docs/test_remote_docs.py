"""What an operator can set for sandboxes on other machines is in a page, and its example works."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from agentsvc.config.schema import Config
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.sandboxes.registry import BackendRegistry
from tests.docs.pages import text_of

SECTION = text_of("how-to/other-machines")
EXAMPLES = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)


@pytest.mark.parametrize("name", ["agentsvc", "remote"])
def test_every_key_is_named(name: str) -> None:
    keys = PluginHost.load().backend_types()[name].Config.__struct_fields__
    assert [key for key in keys if f"`{key}`" not in SECTION] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_are_configurations(example: str, tmp_path: Path) -> None:
    config = msgspec.convert(tomllib.loads(example), Config)
    registry = BackendRegistry.build(PluginHost.load(), config, instance_id="i", state_dir=tmp_path)
    assert set(registry.names()) == {"process", *config.backends} - {"machines"}
