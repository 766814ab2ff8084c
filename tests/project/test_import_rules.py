"""Rules about imports that import-linter cannot check: `plugins/`, and what a process loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
OPEN_TO_PLUGINS = ("base", "cli.extension", "extension", "plugin", "testing")
PLUGIN_FILES = sorted((TOP / "plugins").rglob("*.py"))

BUILT_ON_ANOTHER = (TOP / "plugins" / "agent_sandbox" / "kube.py",)
"""Modules that name parts of the plugin which theirs is a kind of; nothing else of theirs does."""


def imported_by(source: str, depth: int) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                # A part of the plugin itself, if it is not outside its package.
                assert node.level <= depth
                continue
            # `from agentsvc.plugin import backend` names a module, `from agentsvc.plugin.backend import Spec` a part.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaches(source: str, depth: int = 1) -> list[str]:
    allowed = tuple(f"agentsvc.{name}" for name in OPEN_TO_PLUGINS)
    return [
        name
        for name in imported_by(source, depth)
        if name.split(".")[0] == "agentsvc"
        and not f"{name}.".startswith(tuple(f"{a}." for a in allowed))
    ]


def test_a_plugin_imports_only_what_is_public() -> None:
    def depth(file: Path) -> int:
        return len(file.relative_to(TOP / "plugins").parents) - 1 + (file in BUILT_ON_ANOTHER)

    assert {file.name: breaches(file.read_text(), depth(file)) for file in PLUGIN_FILES} == {
        file.name: [] for file in PLUGIN_FILES
    }


@pytest.mark.parametrize(
    "line",
    [
        "import agentsvc.storage.database",
        "import agentsvc",
        "from agentsvc import db",
        "from agentsvc.sandboxes import Sandboxes",
        "from agentsvc.config import Config",
        "def f():\n    import agentsvc.config.schema",
    ],
)
def test_the_rule_for_plugins_catches(line: str) -> None:
    assert len(breaches(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import aiohttp",
        "import agentsvc.plugin.backend",
        "from agentsvc.base import Conflict, values",
        "from agentsvc.plugin.backend import Spec",
        "from agentsvc.testing.kit import backend_contract",
    ],
)
def test_the_rule_for_plugins_allows(line: str) -> None:
    assert breaches(line) == []


def test_what_runs_beside_or_in_process_sandboxes_needs_the_standard_library_alone() -> None:
    process = TOP / "plugins" / "process"
    programs = sorted((process / "programs").glob("*.py"))
    alone = [*programs, process / "landlock.py", process / "uplink.py", TOP / "agentsvc/guest.py"]
    assert len(programs) > 5
    for file in alone:
        roots = {name.partition(".")[0] for name in imported_by(file.read_text(), 2)}
        assert roots <= sys.stdlib_module_names, file


def test_a_backend_that_nobody_configured_loads_no_client_library() -> None:
    code = "import sys; from agentsvc.sandboxes.plugin_loader import PluginHost; host = PluginHost.load();"
    code += "print(*host.backend_types()); print(*sorted(sys.modules))"
    backends, modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"docker", "kubernetes"} <= set(backends.split())
    loaded = {name.partition(".")[0] for name in modules.split()}
    assert not loaded & {"aiodocker", "kubernetes_asyncio"}


def test_the_server_loads_nothing_of_what_runs_in_a_sandbox() -> None:
    code = "import sys, agentsvc.cli.serve, tests, process.backend; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    roots = {name.partition(".")[0] for name in loaded}
    assert "aiohttp" in roots
    assert not roots & {"openhands", "litellm", "fastapi", "pydantic", "httpx", "rich", "pytest"}
    assert not [name for name in loaded if name.startswith("agentsvc.testing")]
