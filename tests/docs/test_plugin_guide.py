"""The guide for plugin authors is true: hooks, errors, switches and code."""

import inspect
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from agentsvc import hookspecs
from agentsvc.hookspecs import Event
from agentsvc.plugins import Notifier, PluginHost
from agentsvc.testing import FakeBackend, KitOptions, backend_contract
from agentsvc.values import now

GUIDE = (Path(__file__).parents[2] / "plugins" / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_every_hook_is_explained_with_its_arguments() -> None:
    hooks = {name: one for name, one in vars(hookspecs).items() if name.startswith("agentsvc_")}
    shown = dict(re.findall(r"^\| `(agentsvc_\w+)\((\w*)\)` \|", GUIDE, re.MULTILINE))
    assert shown == {
        name: ", ".join(inspect.signature(one).parameters) for name, one in hooks.items()
    }


def test_every_import_of_the_guide_is_a_public_module() -> None:
    modules = set(re.findall(r"^from (agentsvc\S*) import", "\n".join(BLOCKS), re.MULTILINE))
    assert modules <= {
        "agentsvc.backend",
        "agentsvc.errors",
        "agentsvc.hookspecs",
        "agentsvc.testing",
        "agentsvc.values",
    }


async def test_the_plugin_of_the_guide_hears_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sample.py").write_text(BLOCKS[0])
    host = PluginHost.load(dirs=[tmp_path], disable=["process"])
    await Notifier(host).tell(Event(id="1", kind="sandbox.changed", at=now(), subject_id="abc"))
    [record] = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert record.__dict__["kind"] == "sandbox.changed"


def test_the_tests_of_the_guide_are_tests() -> None:
    def config(**_values: str) -> Any:
        return None

    names: dict[str, Any] = {"FirecrackerBackend": FakeBackend, "FirecrackerConfig": config}
    for block in BLOCKS[1:]:
        exec(block, names)  # noqa: S102  # it is what the guide tells to run
    assert names["backend_contract"] is backend_contract
    assert isinstance(names["OPTIONS"], KitOptions)
    assert any(name.startswith("test_") for name in vars(names["TestFirecracker"]))
