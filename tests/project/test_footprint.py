"""What the server brings along: packages it imports to serve, and distributions that are installed."""

import os
import subprocess
import sys
from typing import Final

import msgspec

from tests.bench.installed import closure

MAX_DISTRIBUTIONS: Final = 40
MAX_MODULES: Final = 855
"""Those of the standard library and our own included; each package and plugin of ours is one more."""

PACKAGES: Final = frozenset(
    {
        "agentsvc",
        "agentsvc_plugins",
        "aiohappyeyeballs",
        "aiohttp",
        "aiosignal",
        "aiosqlite",
        "attr",
        "attrs",
        "backports",
        "cffi",
        "click",
        "cryptography",
        "frozenlist",
        "idna",
        "msgspec",
        "multidict",
        "pluggy",
        "propcache",
        "typing_extensions",
        "yarl",
    }
)
"""What a server that nobody has asked for anything has imported, beside the standard library."""

OPTIONAL: Final = frozenset(
    {"_cffi_backend", "aiodns", "brotli", "brotlicffi", "certifi", "pycares", "uvloop", "zlib_ng"}
)
"""What these packages use where somebody has installed it."""

PROGRAM: Final = """
import json, sys

before = set(sys.modules)
importers = {}

class Watch:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe()
        while frame and not frame.f_globals.get("__name__", "").startswith("agentsvc"):
            frame = frame.f_back
        importers.setdefault(name, frame.f_globals["__name__"] if frame else "nobody of ours")

sys.meta_path.insert(0, Watch())
import agentsvc.cli.serve
from agentsvc.app import published_routes
from agentsvc.config.schema import Config
from agentsvc.sandboxes.plugin_loader import PluginHost

PluginHost.load()
published_routes(Config())
found = (set(sys.modules) - before) & importers.keys()
print(json.dumps({name: importers[name] for name in found}))
"""


def test_the_server_imports_no_package_it_did_not_import_before() -> None:
    added = _imported()
    allowed = PACKAGES | OPTIONAL | sys.stdlib_module_names
    strange = {
        name: importer
        for name, importer in added.items()
        if "." not in name and name not in allowed
    }
    assert not strange, "packages, and which module of ours made them be imported"
    counts = _counted(added)
    assert len(added) <= MAX_MODULES, f"the most modules are of {counts[:12]}"


def test_an_installation_without_extras_is_small() -> None:
    found = closure("agentsvc")
    assert len(found) <= MAX_DISTRIBUTIONS, sorted(found)
    assert "aiohttp" in found


def _imported() -> dict[str, str]:
    """Return what a fresh process imports to serve, with who made it do so."""
    # Coverage would import its own.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=env
    )
    return msgspec.json.decode(done.stdout, type=dict[str, str])


def _counted(added: dict[str, str]) -> list[tuple[str, int]]:
    tops = [name.partition(".")[0] for name in added]
    return sorted({top: tops.count(top) for top in tops}.items(), key=lambda one: -one[1])
