"""What an operator can set for sandboxes in a cluster is in a page, and its example works."""

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.config.schema import Config
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.sandboxes.registry import BackendRegistry
from tests.docs.pages import text_of
from tests.plugin_loading import part

if TYPE_CHECKING:
    from kubernetes import plan, settings
else:
    plan, settings = part("kubernetes.plan"), part("kubernetes.settings")

SECTION = text_of("how-to/kubernetes")
[EXAMPLE] = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)


@pytest.mark.parametrize("kind", [settings.KubernetesConfig, plan.Options])
def test_every_key_is_named(kind: Any) -> None:
    keys = kind.__struct_fields__
    assert [key for key in keys if f"`{key}`" not in SECTION] == []


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    config = msgspec.convert(tomllib.loads(EXAMPLE), Config)
    registry = BackendRegistry.build(PluginHost.load(), config, instance_id="i", state_dir=tmp_path)
    assert set(registry.names()) == {"process", "kubernetes"}
    [spec] = [spec for spec in registry.specs() if spec.id == "agent"]
    plan.check(spec)
