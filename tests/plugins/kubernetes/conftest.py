"""An API server of the tests' own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.api import KubeApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubeApi]:
    with KubeApi(tmp_path / "volumes") as server:
        yield server
