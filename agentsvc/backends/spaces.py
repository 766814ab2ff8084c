"""User namespaces in which a sandbox has a user of its own, made by root before it gives up being root.

Used by what starts bubblewrap for a server that is root, with the standard library alone and little
of that: a server that starts waits for a trial of it. What sets
a sandbox up has to open what only root may enter; what runs in it must never be root to anything.
So there are two namespaces, one in the other: the outer one knows root and the sandbox's user, and
only bubblewrap is in it; the inner one knows the sandbox's user alone.
"""

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence

INSIDE = 1000
"""What a sandbox's user is called inside, whoever it is outside."""

_MAPS = ("gid_map", "uid_map")
_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_BYTES = 24
_MESSAGE_MAX = 4096
_FAILED = 1


class NotMade(OSError):
    """There can be no such namespaces here."""


@contextlib.contextmanager
def made(user: int) -> Iterator[list[int]]:
    """Make both namespaces, the outer one first, and close them at the end; raises NotMade.

    They belong to that user, who may enter them from outside and from nowhere else. For user 0,
    who needs none, there are none.
    """
    if not user:
        yield []
        return
    heard, tell = os.pipe()
    listen, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.close(listen)
        _answer(said, lambda: _hold_both(user, heard, said))
    os.close(heard)
    os.close(said)
    found: list[int] = []
    try:
        with os.fdopen(listen, "rb", buffering=0) as answers:
            _expect(answers.read(_MESSAGE_MAX))
            try:
                _map(pid, f"0 0 1\n{INSIDE} {user} 1\n")
            except OSError as exc:
                raise NotMade(f"user {user} cannot be had in a namespace: {exc.strerror}") from exc
            os.write(tell, b"!")
            inner = _expect(answers.read(_MESSAGE_MAX))
            found += [os.open(f"/proc/{one}/ns/user", os.O_RDONLY) for one in (pid, inner)]
    except BaseException:
        for number in found:
            os.close(number)
        raise
    finally:
        # The holders of the namespaces end when nobody can tell them anything any more.
        os.close(tell)
        os.waitpid(pid, 0)
    try:
        yield found
    finally:
        for number in found:
            os.close(number)


def arguments(namespaces: Sequence[int]) -> list[str]:
    """Return bubblewrap's arguments for a sandbox that is to be in these; none for none."""
    if not namespaces:
        return []
    outer, inner = map(str, namespaces)
    # Only whoever may give up capabilities can see to it that none comes back.
    return ["--userns", outer, "--userns2", inner, "--cap-add", "CAP_SETPCAP"]


def become(user: int) -> None:
    """Be that user, with no group but its own and without any right of root's."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main() -> None:
    """Become bubblewrap as a user of its own: USER PROGRAM ARGUMENTS-FILE COMMAND..."""
    user, program, number, *command = sys.argv[1:]
    try:
        with made(int(user)) as namespaces:
            for one in (*namespaces, int(number)):
                os.set_inheritable(one, True)
            become(int(user))
            os.execve(  # noqa: S606  # running it is what it is for
                program, [program, "--args", number, *arguments(namespaces), *command], {}
            )
    except OSError as exc:
        sys.stderr.write(f"{exc.strerror or exc}\n")
        sys.exit(_FAILED)


def _hold_both(user: int, heard: int, said: int) -> None:
    _become_with_rights(user)
    os.unshare(os.CLONE_NEWUSER)
    os.write(said, b"0")
    if not os.read(heard, 1):
        return
    ready, readied = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        _answer(said, lambda: _hold_inner(heard, readied))
    os.close(readied)
    if os.read(ready, 1):
        _map(pid, f"{INSIDE} {INSIDE} 1\n")
        os.write(said, str(pid).encode())
    os.waitpid(pid, 0)


def _hold_inner(heard: int, readied: int) -> None:
    os.unshare(os.CLONE_NEWUSER)
    os.write(readied, b"!")
    os.close(readied)
    os.read(heard, 1)


def _become_with_rights(user: int) -> None:
    # The kernel may let root alone make namespaces; whose they are is whoever makes them.
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    rights = ctypes.create_string_buffer(_CAPABILITY_BYTES)
    _check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    become(user)
    _check(libc.capget(header, rights))
    fields = list(struct.unpack("=6I", rights.raw))
    fields[0], fields[3] = fields[1], fields[4]
    _check(libc.capset(header, struct.pack("=6I", *fields)))


def _answer(said: int, hold: Callable[[], None]) -> None:
    try:
        hold()
    except OSError as exc:
        os.write(said, f"no user namespace can be made: {exc.strerror}".encode())
    finally:
        os._exit(0)


def _map(pid: int, lines: str) -> None:
    for name in _MAPS:
        number = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(number, lines.encode())
        finally:
            os.close(number)


def _expect(answer: bytes) -> int:
    if answer.isdigit():
        return int(answer)
    raise NotMade(answer.decode() or "no user namespace can be made")


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
