"""User namespaces that give a sandbox a user of its own, created while still root.

Used to start bubblewrap if the server is root; imports little of the standard library, because a
starting server waits for a trial of it. Setting up a sandbox needs files that only root may open;
processes in the sandbox must never be root to anything. So there are two nested namespaces: the
outer one maps root and the sandbox's user, and only bubblewrap is in it; the inner one maps the
sandbox's user alone. If the command should come from the fork server, a third one encloses both: it
belongs to the fork server's user, who may thereby enter the other two without any capability.
bubblewrap is started in it. If the server is not root, bubblewrap creates the first two itself, and
the enclosing one is the fork server's.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from io import FileIO

INSIDE = 1000
"""The user id of a sandbox inside, whatever its user id is outside."""

_MAPS = ("gid_map", "uid_map")
_SHARED_LIMITS = ("/proc/sys/user/max_inotify_instances", "/proc/sys/user/max_inotify_watches")
_SHARED_RESOURCES = (
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_SIGPENDING,
)
"""Limits that the kernel also counts for the fork server's user, whose namespaces enclose all
sandboxes."""
_SHARE = 4
"""One sandbox gets at most this fraction of them."""
NS_GET_USERNS = 0xB701
"""The ioctl that returns the user namespace which owns another namespace."""
_NS_GET_PARENT = 0xB702
_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_BYTES = 24
_MESSAGE_MAX = 4096
_FAILED = 1


class NamespaceUnavailable(OSError):
    """The user namespaces cannot be created here."""


class UserNamespaces:
    """The descriptors of one sandbox's user namespaces; empty if it needs none."""

    def __init__(self) -> None:
        self.around: int | None = None
        """The one in which bubblewrap is started, if that is not its caller's."""
        self.pair: list[int] = []
        """The outer one and the inner one."""

    def all(self) -> list[int]:
        """Return every descriptor."""
        return [*self.pair, *([] if self.around is None else [self.around])]


@contextlib.contextmanager
def made(user: int, entered_by: int = 0, *, around: int | None = None) -> Iterator[UserNamespaces]:
    """Create the namespaces and close them at the end; raises NamespaceUnavailable.

    The pair belongs to that user, who may enter it only from the namespace in which it was created.
    User 0 needs no pair, and gets only `around`, if that exists. With `entered_by`, the pair is
    created within a namespace that belongs to that user.
    """
    spaces = UserNamespaces()
    try:
        if user:
            with _holder(lambda heard, said: _hold_all(user, entered_by, heard, said)) as held:
                pid, tell, answers = held
                _set_up(spaces, pid, user, entered_by, tell=tell, answers=answers)
        else:
            spaces.around = around
        yield spaces
    finally:
        for number in spaces.all():
            os.close(number)


@contextlib.contextmanager
def _holder(hold: Callable[[int, int], None]) -> Iterator[tuple[int, int, FileIO]]:
    """Fork a process that holds namespaces, and wait for it when the context ends.

    It gets a pipe to read from and one to write to; the caller gets its pid and the other ends.
    """
    heard, tell = os.pipe()
    listen, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.close(listen)
        _answer(said, lambda: hold(heard, said))
    os.close(heard)
    os.close(said)
    try:
        with os.fdopen(listen, "rb", buffering=0) as answers:
            yield pid, tell, answers
    finally:
        # The holders of the namespaces end when the write end of their pipe is closed.
        os.close(tell)
        os.waitpid(pid, 0)


def _set_up(
    spaces: UserNamespaces, pid: int, user: int, entered_by: int, *, tell: int, answers: FileIO
) -> None:
    _expect(answers.read(_MESSAGE_MAX))
    known = f"{user} {user} 1\n" if entered_by else _outer(user)
    try:
        _map(pid, f"0 0 1\n{known}")
    except OSError as exc:
        raise NamespaceUnavailable(
            f"user {user} cannot be had in a namespace: {exc.strerror}"
        ) from exc
    os.write(tell, b"!")
    outer = pid
    if entered_by:
        spaces.around = _space_of(pid)
        outer = _expect(answers.read(_MESSAGE_MAX))
        os.write(tell, b"!")
    inner = _expect(answers.read(_MESSAGE_MAX))
    spaces.pair += [_space_of(one) for one in (outer, inner)]


def _space_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def mapping(owner: int, user: int) -> int:
    """Return a user namespace that maps one user's files to another user; raises OSError."""
    with _holder(_hold) as (pid, _, answers):
        if answers.read(_MESSAGE_MAX) != b"!":
            raise NamespaceUnavailable("no user namespace can be made")
        _map(pid, f"{owner} {user} 1\n")
        return _space_of(pid)


def around(space: int) -> int | None:
    """Return the parent user namespace, whose owner may enter a namespace; None if it is ours."""
    number = fcntl.ioctl(space, _NS_GET_PARENT)
    os.set_inheritable(number, False)
    if os.path.samestat(os.fstat(number), os.stat("/proc/self/ns/user")):  # noqa: PTH116  # as above
        os.close(number)
        return None
    return number


def run_within(namespace: int, act: Callable[[], None]) -> bool:
    """Call a function with all rights in a namespace, in a fork; return whether it succeeded.

    Raises OSError if no process can be forked.
    """
    pid = os.fork()
    if pid == 0:
        code = _FAILED
        try:
            os.setns(fcntl.ioctl(namespace, NS_GET_USERNS), os.CLONE_NEWUSER)
            os.setns(namespace, 0)
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def arguments(pair: Sequence[int]) -> list[str]:
    """Return bubblewrap's arguments to enter these namespaces; empty without namespaces."""
    if not pair:
        return []
    outer, inner = map(str, pair)
    # A process needs this capability to make sure that no other one comes back.
    return ["--userns", outer, "--userns2", inner, "--cap-add", "CAP_SETPCAP"]


def become(user: int, around: int | None = None) -> None:
    """Change to a user without supplementary groups or root's rights; 0 keeps the user.

    With `around`, join that user namespace first.
    """
    if around is not None:
        os.setns(around, os.CLONE_NEWUSER)
    if not user:
        return
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main() -> None:
    """Execute bubblewrap as a user of its own: USER PROGRAM ARGUMENTS-FILE COMMAND..."""
    user, program, number, *command = sys.argv[1:]
    try:
        with made(int(user)) as spaces:
            for one in (*spaces.pair, int(number)):
                os.set_inheritable(one, True)
            become(int(user))
            os.execve(  # noqa: S606  # running it is what it is for
                program, [program, "--args", number, *arguments(spaces.pair), *command], {}
            )
    except OSError as exc:
        sys.stderr.write(f"{exc.strerror or exc}\n")
        sys.exit(_FAILED)


def _hold_all(user: int, entered_by: int, heard: int, said: int) -> None:
    _become_with_rights(entered_by or user)
    shares = _shares() if entered_by else {}
    os.unshare(os.CLONE_NEWUSER)
    for path, most in shares.items():
        with contextlib.suppress(OSError):  # if /proc is not writable
            _write(path, most)
    os.write(said, b"0")
    if not os.read(heard, 1):
        return
    if entered_by:
        _become_with_rights(user)
        _hold_within(f"0 0 1\n{_outer(user)}", said, lambda tell: _hold_outer(heard, said, tell))
    else:
        _hold_inner(heard, said)


def _shares() -> dict[str, bytes]:
    """Return the values to write to limits, so that no sandbox exhausts those of all."""
    found = {}
    for path in _SHARED_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            number = os.open(path, os.O_RDONLY)
            found[path] = b"%d" % max(1, int(os.read(number, _MESSAGE_MAX)) // _SHARE)
            os.close(number)
    return found


def _hold_outer(heard: int, said: int, readied: int) -> None:
    # A new namespace gets the limits of its creator, who has those of all sandboxes together.
    for kind in _SHARED_RESOURCES:
        most, bound = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            resource.setrlimit(kind, (most // _SHARE, bound))
    _unshare(readied)
    if os.read(heard, 1):
        _hold_inner(heard, said)


def _hold_inner(heard: int, said: int) -> None:
    _hold_within(f"{INSIDE} {INSIDE} 1\n", said, lambda readied: _hold(heard, readied))


def _hold_within(known: str, said: int, hold: Callable[[int], None]) -> None:
    """Fork a child that creates a namespace, report its pid, and wait for its end.

    Only a process in the parent namespace may write the id maps.
    """
    ready, readied = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        _answer(said, lambda: hold(readied))
    os.close(readied)
    if os.read(ready, 1):
        _map(pid, known)
        os.write(said, str(pid).encode())
    os.waitpid(pid, 0)


def _unshare(readied: int) -> None:
    os.unshare(os.CLONE_NEWUSER)
    os.write(readied, b"!")
    os.close(readied)


def _hold(heard: int, readied: int) -> None:
    _unshare(readied)
    os.read(heard, 1)


def _outer(user: int) -> str:
    return f"{INSIDE} {user} 1\n"


def _become_with_rights(user: int) -> None:
    # The kernel may permit only root to create user namespaces; their owner is the creator's user.
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    rights = ctypes.create_string_buffer(_CAPABILITY_BYTES)
    check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    become(user)
    check(libc.capget(header, rights))
    fields = list(struct.unpack("=6I", rights.raw))
    fields[0], fields[3] = fields[1], fields[4]
    check(libc.capset(header, struct.pack("=6I", *fields)))


def _answer(said: int, hold: Callable[[], None]) -> None:
    try:
        hold()
    except OSError as exc:
        os.write(said, f"no user namespace can be made: {exc.strerror}".encode())
    finally:
        os._exit(0)


def _map(pid: int, lines: str) -> None:
    for name in _MAPS:
        _write(f"/proc/{pid}/{name}", lines.encode())


def _write(path: str, data: bytes) -> None:
    number = os.open(path, os.O_WRONLY)
    try:
        os.write(number, data)
    finally:
        os.close(number)


def _expect(answer: bytes) -> int:
    if answer.isdigit():
        return int(answer)
    raise NamespaceUnavailable(answer.decode() or "no user namespace can be made")


def check(result: int) -> None:
    """Raise OSError if a call of the C library did not return 0."""
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
