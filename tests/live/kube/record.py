"""When the suite last ran, and with which plugin: written by who runs it, read by an ordinary run."""

import ast
import hashlib
import re
from datetime import datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PLUGIN: Final = ROOT / "plugins/kubernetes"
RECORD: Final = Path(__file__).with_name("LAST_RUN.md")

_FORM: Final = """\
# The last run on a real Kubernetes

`poe live-kubernetes` writes this file when everything has passed. A test fails while the plugin is
not the one that is named here: run it again then, and commit what it has written.

- when: {when}
- with: {version}
- passed: {passed} tests
- plugin: `{plugin}`

The services of that cluster are carried by its own kube-proxy. What answers for their names, holds
pods to network policies, makes volumes and takes snapshots of them is the tests' own: `dns.py`,
`fences.py` and `volumes.py` beside this file. Not tried at all are networks such as Calico and Cilium, a server of metrics,
gVisor and Kata, and clusters of a newer version.
"""
_PLUGIN_LINE: Final = re.compile(r"^- plugin: `([0-9a-f]{64})`$", re.MULTILINE)
_WHEN_LINE: Final = re.compile(r"^- when: (.+)$", re.MULTILINE)


def digest() -> str:
    """Return what tells the plugin's programs and manifests as they are from any others."""
    found = hashlib.sha256()
    for file in sorted(PLUGIN.rglob("*")):
        if file.suffix in (".py", ".yaml"):
            found.update(f"{file.relative_to(PLUGIN)}\0".encode())
            found.update(hashlib.sha256(_code(file).encode()).digest())
    return found.hexdigest()


def _code(file: Path) -> str:
    """Return the lines of a file but imports, docstrings and blank ones: a module may move."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom):
                continue
            if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant):
                first, last = node.lineno - 1, node.end_lineno or node.lineno
                lines[first:last] = [""] * (last - first)
    return "\n".join(line for line in lines if line.strip())


def write(when: datetime, version: str, passed: int, plugin: str) -> None:
    RECORD.write_text(
        _FORM.format(
            when=when.strftime("%Y-%m-%d %H:%M UTC"), version=version, passed=passed, plugin=plugin
        )
    )


def last_plugin() -> str:
    """Return the digest of the plugin that the suite last ran with."""
    return _only(_PLUGIN_LINE)


def last_time() -> str:
    return _only(_WHEN_LINE)


def _only(line: re.Pattern[str]) -> str:
    [found] = line.findall(RECORD.read_text())
    return str(found)
