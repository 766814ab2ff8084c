"""Makes a fork of an interpreter that has loaded much as one that was only just started.

Used by `agentsvc.backends.warm`, with the standard library alone. What was read from the
environment while loading is known by name: an environment that says something else of it is
refused. What was kept of the home and the temporary directory is found in memory and replaced.
"""

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import random
import signal
import site
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import FileFinder
from pathlib import Path, PosixPath, PurePath
from types import CellType
from typing import Any, Final

HERE: Final = "PWD"
"""The name for the working directory, which the environment of a sandbox does not have."""

_FOR_EACH: Final = frozenset(
    {"HOME", "TMPDIR", "TEMP", "TMP", "PATH", "TMUX_TMPDIR", HERE, "USER", "LOGNAME", "TZ"}
)
"""Read while loading, too, and right for each all the same."""

_EARLY: Final = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "GCONV_", "LOCPATH", "OPENSSL_"),
    *("GRPC_", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "RAYON_", "RUST_", "TOKENIZERS_"),
    *("FASTMCP_", "MCP_", "BROWSER_USE_", "LMNR_", "OTEL_", "PROTOCOL_BUFFERS_"),
)
"""How the names of variables begin that count before or without anybody's asking for them."""

_STAT_ARGUMENTS: Final = 45
"""Where in a process's line of /proc its arguments begin, and then end; its environment follows."""


_PLAIN: Final = (tuple, dict)
"""What the collector does not follow where it has found nothing to follow in it."""


class Asked:
    """The variables that somebody wanted while loading, and what they were."""

    def __init__(self) -> None:
        self.found: dict[str, str | None] = {}
        self.made: dict[str, str] = {}
        """What loading itself has set, as it does in each process."""
        self._begun_with = dict(os.environ)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note what is asked meanwhile."""
        kind: Any = type(os.environ)
        read, write = kind.__getitem__, kind.__setitem__

        def listen(environ: Any, name: Any) -> Any:
            text = os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
            if text in self.made:
                return read(environ, name)
            self.found.setdefault(text, None)
            value = read(environ, name)
            self.found[text] = os.fsdecode(value)
            return value

        def note(environ: Any, name: Any, value: Any) -> None:
            write(environ, name, value)
            self.made[os.fsdecode(name)] = os.fsdecode(value)

        kind.__getitem__, kind.__setitem__ = listen, note
        try:
            yield
        finally:
            kind.__getitem__, kind.__setitem__ = read, write

    def refusal(self, env: Mapping[str, str]) -> str:
        """Return why what has been loaded is not right for an environment, or nothing."""
        for name in sorted(self.found.keys() - _FOR_EACH):
            if env.get(name) != self.found[name]:
                return f"`{name}` counts while the agent server is loaded"
        for name, value in sorted(env.items()):
            if name.startswith(_EARLY) and self._begun_with.get(name) != value:
                return f"`{name}` counts when Python starts"
        return ""


class Kept:
    """Where something loaded keeps paths below directories that are not those of a sandbox."""

    def __init__(self, top: str, names: Sequence[str]) -> None:
        """Take a directory, and the variables that name those in it which are to be looked for."""
        self.directories = {f"{top}/{name}": name for name in names}
        self._top = top
        self._paths: list[PurePath] = []
        self._texts: list[tuple[Any, Any]] = []
        self.lost: list[str] = []
        """What keeps one where it cannot be replaced."""

    def find(self) -> None:
        """Look through all that there is."""
        gc.collect()
        found, loose = self._search()
        self._paths = [one for one in found if isinstance(one, PurePath)]
        asked = tuple(found)
        own = {
            id(one) for one in (found, asked, loose, self._paths, self.directories, self.__dict__)
        }
        kept_by_paths = {id(one) for path in self._paths for one in gc.get_referents(path)}
        skipped = own | kept_by_paths | {id(path) for path in self._paths}
        wanted = {id(one) for one in found}
        loose = [holder for holder in loose if wanted & set(map(id, gc.get_referents(holder)))]
        for holder in (*gc.get_referrers(*asked), *loose) if found else ():
            if id(holder) not in skipped and not _is_search_path(holder):
                self._note(holder, wanted)

    def replace(self, env: Mapping[str, str]) -> None:
        """Put what a sandbox has in place of all that was found."""
        for path in self._paths:
            _change(path, self._changed(str(path), env))
        for holder, key in self._texts:
            if type(holder) is CellType:
                holder.cell_contents = self._changed(holder.cell_contents, env)
            else:
                holder[key] = self._changed(holder[key], env)

    def _changed(self, text: str, env: Mapping[str, str]) -> str:
        for directory, name in self.directories.items():
            text = text.replace(directory, env.get(name) or "/")
        return text

    def _search(self) -> tuple[list[Any], list[Any]]:
        """Return the paths and texts, and what the collector does not follow but may hold some."""
        top = self._top
        seen = gc.get_referents(*gc.get_objects())
        loose: dict[int, Any] = {}
        found: dict[int, Any] = {}
        while seen:
            new = []
            for one in seen:
                kind = type(one)
                if kind is str:
                    if top in one and one != top:
                        found[id(one)] = one
                elif kind is PosixPath:
                    if top in str(one):
                        found[id(one)] = one
                elif kind in _PLAIN and not gc.is_tracked(one) and id(one) not in loose:
                    loose[id(one)] = one
                    new.append(one)
            seen = gc.get_referents(*new)
        for directory in self.directories:
            found.pop(id(directory), None)
        return list(found.values()), list(loose.values())

    def _note(self, holder: Any, wanted: set[int]) -> None:
        if isinstance(holder, dict):
            self._texts += [
                (holder, key)
                for key, value in holder.items()
                if type(value) is str and id(value) in wanted
            ]
            if any(id(key) in wanted for key in holder):
                self.lost.append("the keys of a dictionary")
        elif isinstance(holder, list):
            self._texts += [
                (holder, at)
                for at, value in enumerate(holder)
                if type(value) is str and id(value) in wanted
            ]
        elif type(holder) is CellType:
            if type(holder.cell_contents) is str:
                self._texts.append((holder, None))
        elif isinstance(holder, set | frozenset) or any(
            type(one) is str and id(one) in wanted for one in gc.get_referents(holder)
        ):
            self.lost.append(f"a {type(holder).__name__}")


def _is_search_path(holder: Any) -> bool:
    """Say whether it is about where modules are found, which is forgotten."""
    return type(holder) is FileFinder or (type(holder) is tuple and set(sys.path) <= set(holder))


def _change(path: PurePath, text: str) -> None:
    """Have a path be another one, for all that refer to it."""
    other = type(path)(text)
    for kind in type(path).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if isinstance(getattr(type(path), name), property):
                continue
            if hasattr(other, name):
                setattr(path, name, getattr(other, name))
            elif hasattr(path, name):
                delattr(path, name)


def begin_anew(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    mark: str,
    moments: Sequence[Sequence[str]] = (),
) -> None:
    """Be a process with that environment and those arguments, and with chance of its own.

    `moments` are modules and their attributes that say when the process began, if they are there.
    """
    retitle(argv, mark)
    os.environ.update(env)
    time.tzset()
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    multiprocessing.current_process().authkey = os.urandom(32)
    tempfile.tempdir = None
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # noqa: SLF001  # kept over a fork
    sys.orig_argv = list(argv)
    _find_again()
    for name, attribute in moments:
        if hasattr(module := sys.modules.get(name), attribute):
            setattr(module, attribute, time.clock_gettime(time.CLOCK_REALTIME))


def take_signals() -> None:
    """Handle signals as Python does when it starts."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _find_again() -> None:
    """Look for modules where this process sees them, also in its own home."""
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    site.USER_BASE = site.USER_SITE = None
    with contextlib.suppress(OSError):
        site.addusersitepackages(set(sys.path))


def retitle(argv: Sequence[str], mark: str) -> None:
    """Have the process table show these arguments, and of the environment the mark alone.

    The environment is empty afterwards: nothing may refer to where it was.
    """
    os.environ.clear()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = [int(field) for field in fields[_STAT_ARGUMENTS : _STAT_ARGUMENTS + 4]]
    _write(places[0], places[1], b"\0".join(os.fsencode(part) for part in argv))
    _write(places[2], places[3], os.fsencode(mark))


def _write(start: int, end: int, text: bytes) -> None:
    size = end - start
    if start and size > 0:
        ctypes.memmove(start, text[: size - 1].ljust(size, b"\0"), size)
