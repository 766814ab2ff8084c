"""JSON-RPC in both directions, one message per line."""

import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from http.client import HTTPException
from typing import Any, Final

import msgspec

from agentsvc.cli.extension import CommandFailed

INVALID_PARAMS: Final = -32602
METHOD_NOT_FOUND: Final = -32601
_INTERNAL: Final = -32603
_PARSE: Final = -32700
_TOO_MANY: Final = -32000
_MAX_CONCURRENT: Final = 32

type Params = dict[str, Any]
type Answer = Callable[[str, Params], Any]


class RequestFailed(Exception):
    """A request failed; the error has this code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gone(Exception):
    """The peer has closed the connection."""


class _Message(msgspec.Struct, kw_only=True):
    id: int | str | None = None
    method: str | None = None
    params: Params | None = None
    result: Any = None
    error: Any = None


_MESSAGE = msgspec.json.Decoder(_Message)


class Connection:
    """Handles requests of the peer, each in its own thread, and sends requests to it."""

    def __init__(self, source: Iterable[bytes], send: Callable[[bytes], None]) -> None:
        self._source = source
        self._write = send
        self._lock = threading.RLock()
        self._slots = threading.Semaphore(_MAX_CONCURRENT)
        self._has_ended = False
        self._numbers = itertools.count(1)
        self._pending: dict[int | str, Future[_Message]] = {}

    def notify(self, method: str, params: Params) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Params) -> Any:
        """Send a request and return its result, or None for an error; raises Gone."""
        number = next(self._numbers)
        pending = self._pending[number] = Future[_Message]()
        self._send({"id": number, "method": method, "params": params})
        if self._has_ended:
            raise Gone
        try:
            return pending.result().result
        except CancelledError:
            raise Gone from None

    def serve(self, answer: Answer) -> None:
        """Handle messages until the peer closes the connection."""
        for line in self._source:
            try:
                message = _MESSAGE.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
                self._send({"id": None, **_failure(_PARSE, str(exc))})
                continue
            self._handle(message, answer)
        self.end()

    def end(self) -> None:
        """Stop sending, and cancel pending requests; running handlers stop at their next check."""
        self._has_ended = True
        for pending in list(self._pending.values()):
            pending.cancel()

    def check(self) -> None:
        """Raise Gone if the connection has ended."""
        if self._has_ended:
            raise Gone

    def _handle(self, message: _Message, answer: Answer) -> None:
        if message.method is None:
            pending = self._pending.pop(message.id, None) if message.id is not None else None
            if pending is not None and pending.set_running_or_notify_cancel():
                pending.set_result(message)
            return
        if not self._slots.acquire(blocking=False):
            failure = _failure(_TOO_MANY, f"No more than {_MAX_CONCURRENT} requests at a time")
            self._send({"id": message.id, **failure})
            return
        # In a thread, since the peer may meanwhile cancel the request or respond to a request.
        threading.Thread(target=self._answer, args=(message, answer), daemon=True).start()

    def _answer(self, message: _Message, answer: Answer) -> None:
        # The response to an unexpected exception, which the thread prints on standard error.
        reply = _failure(_INTERNAL, "The request has failed")
        try:
            reply = {"result": answer(message.method or "", message.params or {})}
        except RequestFailed as exc:
            reply = _failure(exc.code, str(exc))
        except CommandFailed as exc:
            reply = _failure(_INTERNAL, exc.format_message())
        except Gone:
            return
        except (OSError, HTTPException) as exc:
            reply = _failure(_INTERNAL, f"the connection to the server was lost: {exc}")
        finally:
            # The slot is released only when the response can be written, and before the peer gets it.
            with self._lock:
                self._slots.release()
                if message.id is not None:
                    self._send({"id": message.id, **reply})

    def _send(self, message: Params) -> None:
        line = msgspec.json.encode({"jsonrpc": "2.0", **message})
        with self._lock:
            if not self._has_ended:
                self._write(line)


def _failure(code: int, message: str) -> Params:
    return {"error": {"code": code, "message": message}}
