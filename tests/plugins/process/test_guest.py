"""What an agent server imports first keeps in the sandbox what would go straight to /tmp."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROFILE = """
class BrowserProfile:
    def __init__(self, *, downloads_path=None, downloads_dir=None):
        self.downloads = downloads_path or downloads_dir or "/tmp/browser-use-downloads-0"
"""
LOOK = "from browser_use.browser.profile import BrowserProfile;"


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """Return a directory with a home, a temporary directory and a place for packages."""
    for name in ("home", "tmp", "packages/browser_use/browser"):
        (tmp_path / name).mkdir(parents=True)
    for package in ("browser_use", "browser_use/browser"):
        (tmp_path / "packages" / package / "__init__.py").touch()
    return tmp_path


def write_profiles(sandbox: Path, text: str) -> None:
    (sandbox / "packages/browser_use/browser/profile.py").write_text(text)


def run(sandbox: Path, code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import agentsvc.guest;{code}"],
        env={
            **{name: text for name, text in os.environ.items() if name.startswith("COVERAGE_")},
            "HOME": str(sandbox / "home"),
            "TMPDIR": str(sandbox / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(sandbox / "packages"), str(Path.cwd())]),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_downloads_go_to_the_temporary_directory(sandbox: Path) -> None:
    write_profiles(sandbox, PROFILE)
    first, second = run(
        sandbox, LOOK + "print(*(BrowserProfile().downloads for _ in range(2)))"
    ).split()
    assert first != second
    assert {str(Path(one).parent) for one in (first, second)} == {str(sandbox / "tmp")}
    assert Path(first).is_dir()


@pytest.mark.parametrize("name", ["downloads_path", "downloads_dir"])
def test_downloads_that_have_a_place_keep_it(sandbox: Path, name: str) -> None:
    write_profiles(sandbox, PROFILE)
    assert run(sandbox, LOOK + f"print(BrowserProfile({name}='/here').downloads)") == "/here"
    assert list((sandbox / "tmp").iterdir()) == []


def test_a_package_of_another_shape_is_left_alone(sandbox: Path) -> None:
    write_profiles(sandbox, "Other = 1")
    assert run(sandbox, "from browser_use.browser.profile import Other;print(Other)") == "1"


def test_a_missing_module_is_missing_as_ever(sandbox: Path) -> None:
    code = "import importlib.util as u;print(u.find_spec('browser_use.browser.profile'))"
    assert run(sandbox, code) == "None"
