"""What the holder of a process sandbox makes of requests that are none."""

import errno
import os
import socket
import threading
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from tests.plugin_loading import part

if TYPE_CHECKING:
    from process.programs import children
else:
    children = part("process.programs.children")

ORDERS = {"control_token": "known", "env": {}}


@pytest.fixture(autouse=True)
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no other process be made."""

    def no_room() -> int:
        raise OSError(errno.EAGAIN, "no room")

    monkeypatch.setattr(os, "fork", no_room)


@pytest.mark.parametrize(
    "request_line",
    [b"[]\n", b'"token"\n', b"null\n", b"[" * 100_000 + b"\n", b"\xff\n", b'{"token": 1}\n'],
)
def test_a_holder_that_can_make_no_process_outlives_what_is_no_request(request_line: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        threading.Thread(target=far.sendall, args=(request_line,), daemon=True).start()
        children.Execution(ORDERS, {}, 0o077).serve_apart(near, lambda: None)
        near.close()
        assert far.recv(100) == b""


def test_nobody_holds_it_up_by_a_request_that_comes_slowly() -> None:
    near, far = socket.socketpair()
    with near, far:
        ended = threading.Event()

        def send() -> None:
            while not ended.wait(0.05):
                far.sendall(b" ")

        sending = threading.Thread(target=send)
        sending.start()
        begun = monotonic()
        children.Execution(ORDERS, {}, 0o077).serve_apart(near, lambda: None)
        took = monotonic() - begun
        ended.set()
        sending.join()
    assert took < 5.0
