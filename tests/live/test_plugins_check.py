"""`agentsvc plugins check` on this machine, as an operator runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def check(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentsvc", "plugins", "check", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )


def test_a_check_of_the_built_in_backend_is_run_here(tmp_path: Path) -> None:
    # All of them, on this backend, are in `tests/contract`.
    result = check(
        "process", "--only", "a created sandbox runs and its ports answer", home=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "passed  a created sandbox runs and its ports answer\n" in result.stdout
    assert "1 passed, 0 failed, " in result.stdout.splitlines()[-1]
