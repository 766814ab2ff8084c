"""The package that `agentsvc plugins new` creates: a renamed copy of the example backend. Pure."""

import re
from pathlib import Path
from typing import Final

from agentsvc.testing import example

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_PYPROJECT: Final = """\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "agentsvc-DASHED"
version = "0.1.0"
description = "Runs sandboxes of agentsvc"
requires-python = ">=3.12"
dependencies = ["agentsvc"]

[project.optional-dependencies]
dev = ["pytest>=8.4"]

[project.entry-points.agentsvc]
NAME = "agentsvc_NAME"

[tool.hatch.build.targets.wheel]
packages = ["agentsvc_NAME"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

_TEST: Final = """\
from agentsvc.testing import KitOptions, backend_contract

from agentsvc_NAME import CLASSBackend, CLASSConfig

OPTIONS = KitOptions()

TestCLASS = backend_contract(CLASSBackend, CLASSConfig(), OPTIONS)
"""

_README: Final = """\
# agentsvc-DASHED

A backend for agentsvc, called `NAME`.

    pip install -e '.[dev]'
    pytest                        # the conformance kit
    agentsvc plugins list         # it is loaded through its entry point

In config.toml:

    [backends.NAME]

    [sandboxes]
    default_backend = "NAME"

`agentsvc plugins check NAME` holds it to the contract on the machine where it runs.
"""


def files(name: str) -> dict[str, str]:
    """Return the files of a new package by path; raises ValueError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a plugin cannot be called `{name}`")
    source = Path(example.__file__).read_text(encoding="utf-8")
    module = (
        source.replace("Example", _class(name))
        .replace('"example"', f'"{name}"')
        .replace("backends.example", f"backends.{name}")
        .replace("The example backend", f"The {name} backend")
    )
    return {
        "pyproject.toml": _fill(_PYPROJECT, name),
        "README.md": _fill(_README, name),
        f"agentsvc_{name}/__init__.py": module,
        "tests/test_contract.py": _fill(_TEST, name),
    }


def _fill(text: str, name: str) -> str:
    return (
        text.replace("DASHED", name.replace("_", "-"))
        .replace("CLASS", _class(name))
        .replace("NAME", name)
    )


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
