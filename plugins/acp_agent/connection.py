"""JSON-RPC in both directions, one message at a time."""

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
_MAX_AT_ONCE: Final = 32

type Params = dict[str, Any]
type Answer = Callable[[str, Params], Any]


class RequestFailed(Exception):
    """A request that has no result."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gone(Exception):
    """The other side has ended before it answered."""


class _Message(msgspec.Struct, kw_only=True):
    id: int | str | None = None
    method: str | None = None
    params: Params | None = None
    result: Any = None
    error: Any = None


_MESSAGE = msgspec.json.Decoder(_Message)


class Connection:
    """Answers requests, each in a thread of its own, and asks the other side."""

    def __init__(self, source: Iterable[bytes], send: Callable[[bytes], None]) -> None:
        self._source = source
        self._write = send
        self._lock = threading.RLock()
        self._places = threading.Semaphore(_MAX_AT_ONCE)
        self._is_over = False
        self._numbers = itertools.count(1)
        self._asked: dict[int | str, Future[_Message]] = {}

    def notify(self, method: str, params: Params) -> None:
        """Tell something."""
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Params) -> Any:
        """Return what the other side answers, None for an error; raises Gone."""
        number = next(self._numbers)
        question = self._asked[number] = Future[_Message]()
        self._send({"id": number, "method": method, "params": params})
        if self._is_over:
            raise Gone
        try:
            return question.result().result
        except CancelledError:
            raise Gone from None

    def serve(self, answer: Answer) -> None:
        """Take messages until the other side ends."""
        for line in self._source:
            try:
                message = _MESSAGE.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
                self._send({"id": None, **_failure(_PARSE, str(exc))})
                continue
            self._handle(message, answer)
        self.end()

    def end(self) -> None:
        """Have nothing more to say to the other side: what is at work for it stops."""
        self._is_over = True
        for question in list(self._asked.values()):
            question.cancel()

    def check(self) -> None:
        """Raise Gone where the other side has ended."""
        if self._is_over:
            raise Gone

    def _handle(self, message: _Message, answer: Answer) -> None:
        if message.method is None:
            question = self._asked.pop(message.id, None) if message.id is not None else None
            if question is not None and question.set_running_or_notify_cancel():
                question.set_result(message)
            return
        if not self._places.acquire(blocking=False):
            failure = _failure(_TOO_MANY, f"No more than {_MAX_AT_ONCE} requests at a time")
            self._send({"id": message.id, **failure})
            return
        # It is not waited for: who asks may cancel, and answers what it is asked meanwhile.
        threading.Thread(target=self._answer, args=(message, answer), daemon=True).start()

    def _answer(self, message: _Message, answer: Answer) -> None:
        # What nobody has foreseen is an answer, too, and is told on standard error by the thread.
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
            reply = _failure(_INTERNAL, f"the server went away: {exc}")
        finally:
            # Who waits to write keeps its place; who has an answer may ask again at once.
            with self._lock:
                self._places.release()
                if message.id is not None:
                    self._send({"id": message.id, **reply})

    def _send(self, message: Params) -> None:
        line = msgspec.json.encode({"jsonrpc": "2.0", **message})
        with self._lock:
            if not self._is_over:
                self._write(line)


def _failure(code: int, message: str) -> Params:
    return {"error": {"code": code, "message": message}}
