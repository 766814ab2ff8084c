"""The server's image, built of the recipe that is shipped, for the deployment that is shipped."""

import io
import json
import tarfile
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from agentsvc.cli.sandbox_image import find_recipe
from tests.live import engines
from tests.live.engines import EngineFailed
from tests.live.kube.record import ROOT

SERVER: Final = "localhost/agentsvc:latest"
"""What the deployment names."""

_BASE: Final = "localhost/agentsvc-tests-base:latest"
_BUILD_SECONDS: Final = 1200.0
_EXTRAS: Final = "kubernetes"
_SOURCES: Final = (
    *("README.md", "agentsvc", "plugins", "pyproject.toml"),
    *(".ci/lock.txt", "tests/__init__.py", "tests/lock.py"),
)
# The authorities that this machine trusts are its own matter, and not the shipped recipe's.
_TRUSTING: Final = f"""\
FROM {engines.BASE}
COPY *.crt Containerfile /usr/local/share/ca-certificates/
RUN rm /usr/local/share/ca-certificates/Containerfile && update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""


def build_server(engine: Path) -> None:
    """Have an engine build the server's image, from this checkout; raises EngineFailed."""
    recipe = find_recipe({})
    files = {"Containerfile": _TRUSTING.encode(), **recipe.certificates}
    _build(engine, _BASE, files, "Containerfile", {})
    known = {name: value for name, value in recipe.indexes.items() if name != "MORE_INDEXES"}
    arguments = {"BASE": _BASE, "EXTRAS": _EXTRAS, **known}
    _build(engine, SERVER, _sources(), "agentsvc/deploy/Containerfile", arguments)


def _sources() -> dict[str, bytes]:
    tops = [ROOT / name for name in _SOURCES]
    files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*"))]
    return {
        str(file.relative_to(ROOT)): file.read_bytes()
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


def _build(
    engine: Path, image: str, files: dict[str, bytes], recipe: str, arguments: dict[str, str]
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    packed.seek(0)
    asked = {"t": image, "dockerfile": recipe, "forcerm": "1", "buildargs": json.dumps(arguments)}
    url = f"/build?{urlencode(asked)}"
    status, said = engines.ask(engine, "POST", url, body=packed, timeout=_BUILD_SECONDS)
    if status != 200 or b'"errorDetail"' in said:
        raise EngineFailed(f"{image} cannot be built: {said.decode()[-2000:]}")
