"""Copies the agent server of an image into a volume, for containers whose image has none.

It runs once per image, as root, in a container without a network, with the agent server's own
Python. The copy includes its loader, its libraries and git, so that the other image needs none of
them. A file written last marks it as complete.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TARGET: Final = Path("/tools")
_ELF: Final = b"\x7fELF"
_NEEDED: Final = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_ENTRIES: Final = ("agent-server", "openhands-agent-server")
_WRAPPER: Final = """#!/bin/sh
if [ ! -e {certificates} ]; then
  SSL_CERT_FILE={base}/ca.crt GIT_SSL_CAINFO={base}/ca.crt; export SSL_CERT_FILE GIT_SSL_CAINFO
fi
{more}exec {base}/lib/{loader} --library-path {base}/lib --argv0 {name} {base}/{program} "$@"
"""
_GIT: Final = """GIT_EXEC_PATH={base}/git-core GIT_TEMPLATE_DIR={base}/git-templates
export GIT_EXEC_PATH GIT_TEMPLATE_DIR
"""


class Copy:
    """The copy of one agent server."""

    def __init__(self, target: Path) -> None:
        self._home = Path(sys.prefix)
        self._there = target
        self._base = target / "base"
        self._loader = ""

    def make(self) -> None:
        """Copy everything, after removing the files of an earlier attempt."""
        for old in self._there.iterdir():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        shutil.copytree(self._home, self._there, symlinks=True, dirs_exist_ok=True)
        stdlib = Path(sysconfig.get_path("stdlib"))
        kept = self._base / "lib" / stdlib.name
        left = shutil.ignore_patterns("site-packages", "dist-packages", "test")
        shutil.copytree(stdlib, kept, ignore=left, ignore_dangling_symlinks=True)
        python = self._copy_program(Path(sys.executable).resolve(), "bin")
        git = self._copy_git()
        self._copy_libraries([python, *self._there.rglob("*.so*"), *git])
        for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
            (self._there / "bin" / name).unlink(missing_ok=True)
            own = self._home / "bin" / name
            self._wrap(self._there / "bin" / name, python, name=str(own))
        base = self._home / "base"
        (self._there / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
        for program in git:
            self._wrap(
                self._base / "git-core" / program.name,
                program,
                more=_GIT.format(base=base),
            )
        path = self._base / "path"
        path.mkdir()
        for name in _ENTRIES:
            (path / name).symlink_to(self._home / "bin" / "agent-server")
        if git:
            (path / "git").symlink_to(base / "git-core" / "git")
        if _CERTIFICATES.exists():
            shutil.copyfile(_CERTIFICATES, self._base / "ca.crt")

    def _copy_program(self, found: Path, directory: str) -> Path:
        (self._base / directory).mkdir(exist_ok=True)
        return Path(shutil.copy(found, self._base / directory / found.name))

    def _copy_git(self) -> list[Path]:
        """Copy git and its helper programs, which are those that are no links to git itself."""
        git = shutil.which("git")
        if git is None:
            return []
        output = _run(git, "--exec-path")
        found = [self._copy_program(Path(git), "git")]
        shutil.copytree("/usr/share/git-core/templates", self._base / "git-templates")
        (self._base / "git-core").mkdir()
        for one in sorted(Path(output.strip()).iterdir()):
            if one.samefile(git) or one.is_dir():
                continue
            if _is_elf(one):
                found.append(self._copy_program(one, "git"))
            else:
                shutil.copy(one, self._base / "git-core" / one.name)
        return found

    def _copy_libraries(self, programs: Iterable[Path]) -> None:
        """Copy the shared libraries that programs and libraries need, unless they are there."""
        files = [str(one) for one in programs if _is_elf(one)]
        output = _run("/usr/bin/ldd", *files)
        for name, path in set(_NEEDED.findall(output)):
            if path.startswith(f"{self._there}/"):
                continue
            self._loader = self._loader if name else Path(path).name
            shutil.copy(path, self._base / "lib" / (Path(name or path).name))

    def _wrap(self, file: Path, program: Path, *, name: str = "", more: str = "") -> None:
        text = _WRAPPER.format(
            certificates=_CERTIFICATES,
            base=self._home / "base",
            loader=self._loader,
            name=name or program.name,
            program=program.relative_to(self._base),
            more=more,
        )
        file.write_text(text)
        file.chmod(0o755)


def _run(*command: str) -> str:
    # ldd fails in the end for files it cannot read, but handles the others.
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own arguments
    return result.stdout


def _is_elf(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(_ELF)) == _ELF


def main() -> None:
    """Copy the agent server unless it is there."""
    done = _TARGET / "done"
    if done.exists():
        return
    os.umask(0o022)
    Copy(_TARGET).make()
    done.touch()


if __name__ == "__main__":
    main()
