"""What an operator can set for sandboxes in a cluster is in a page, and its example works."""

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.config.schema import Config
from agentsvc.plugin.backend import BackendContext
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.sandboxes.registry import BackendRegistry
from tests.docs.pages import text_of
from tests.kube.agent_sandbox import SandboxApi
from tests.kube.standard import breaches
from tests.plugin_loading import part
from tests.plugins.agent_sandbox.pools import put_pool, shown

if TYPE_CHECKING:
    from kubernetes import plan, settings
else:
    plan, settings = part("kubernetes.plan"), part("kubernetes.settings")

SECTION = text_of("how-to/kubernetes")
EXAMPLE, SANDBOX_EXAMPLE = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)


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


def test_the_example_of_agent_sandbox_is_a_configuration(tmp_path: Path) -> None:
    config = msgspec.convert(tomllib.loads(SANDBOX_EXAMPLE), Config)
    host = PluginHost.load(kinds=frozenset({"process", "agent_sandbox"}))
    registry = BackendRegistry.build(host, config, instance_id="i", state_dir=tmp_path)
    assert set(registry.names()) == {"process", "agent_sandbox"}
    specs = {spec.id: spec for spec in registry.specs()}
    kind = host.backend_types()["agent_sandbox"]
    made = kind(kind.Config(), BackendContext(instance_id="i", state_dir=tmp_path))
    for name in ("sandbox", "pooled"):
        made.check_spec(specs[name])


def test_the_template_of_the_guide_is_one_and_keeps_the_standard(tmp_path: Path) -> None:
    template, _ = shown()
    with SandboxApi(tmp_path) as api:
        put_pool(api, replicas=0)
        assert {one["metadata"]["name"] for one in api.all_of("sandboxwarmpools")} == {"agents"}
    assert breaches(template["spec"]["podTemplate"]) == []
