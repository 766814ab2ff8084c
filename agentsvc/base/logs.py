"""Log lines for people or for machines, with the id of the request and without secrets.

Secrets are not logged to begin with, because `Secret` prints as stars. Masking is the second line of
defence: texts that look like keys, and values that were registered as secret.
"""

import asyncio
import contextlib
import itertools
import logging
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from agentsvc.base.values import MASK, Secret, monotonic, now, to_stored

CURRENT_REQUEST: Final[ContextVar[str]] = ContextVar("agentsvc_request_id", default="")
"""The id of the request that is being served; empty for background work."""

_OURS: Final = "agentsvc"
_BELOW_OURS: Final = f"{_OURS}."
_NUMBERS: Final = (int, float)
_QUIET: Final = ("aiohttp.access", "asyncio")
_CAUSES: Final = ("reason", "request_id")
_MAX_FIELD_VALUES: Final = 50
_MAX_SIMILAR: Final = 5
_WINDOW_SECONDS: Final = 60.0
_MIN_SECRET_CHARS: Final = 8
_MAX_SECRETS: Final = 4096

_KEYS = re.compile(
    r"asvc_[A-Za-z0-9_-]{16,}"
    r"|\b(?:sk|tvly|pk|rk)-[A-Za-z0-9_-]{16,}"
    r"|\b(?:gh[opsur]_|github_pat_|glpat-)[A-Za-z0-9_-]{16,}"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{8,}=*"
    r"|(?<=://)[^/\s:@\"]*:[^/\s@\"]+(?=@)"
)
_ID = re.compile(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b")
_PARTS_OF_KEYS: Final = ("asvc_", "k-", "tvly-", "gh", "glpat-", "earer ", "://")
"""Each match of `_KEYS` contains one of these."""
_UNSAFE = re.compile(r'[\s"=\0-\x1f\x7f]')
_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f]")
_STANDARD: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "asctime", "message", "request_id", "taskName"}
)


class Masker:
    """Replaces secrets in texts: known formats of keys, and registered values."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}

    def add(self, secret: Secret) -> None:
        """Mask this value from now on, unless it is so short that it would mask plain words.

        The oldest values are dropped when there are thousands.
        """
        value = secret.reveal()
        if len(value) < _MIN_SECRET_CHARS:
            return
        self._values.pop(value, None)
        self._values[value] = None
        if len(self._values) > _MAX_SECRETS:
            del self._values[next(iter(self._values))]

    def mask(self, text: str) -> str:
        """Return the text with every secret replaced by stars."""
        # The longest first, because one secret may begin with another.
        found = [value for value in tuple(self._values) if value in text]
        for value in sorted(found, key=len, reverse=True):
            text = text.replace(value, MASK)
        # A substring search is much faster than the regular expression, and most lines have no match.
        for part in _PARTS_OF_KEYS:
            if part in text:
                return _KEYS.sub(MASK, text)
        return text


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Writes records, and limits the rate of similar ones.

    Warnings, errors, and records with a `reason` are similar if they have the same logger, level, message
    and exception type, and the same reason except for ids in it; other fields are ignored. A few of them
    are written in each minute, then one summary with the number of the others and their fields.
    """

    def __init__(self, stream: TextIO, formatter: "LineFormatter") -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._formatter = formatter
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._repeats: dict[tuple[object, ...], _Repeats] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a record, after the summaries that are due.

        Sets `request_id` of the record.
        """
        record.request_id = CURRENT_REQUEST.get()
        self._write_lines()
        if self._repeats:
            self._write_due(monotonic() - _WINDOW_SECONDS)
        cause = _similarity_key(record)
        if cause is None:
            super().emit(record)
            return
        repeats = self._repeats.setdefault(cause, _Repeats(since=monotonic()))
        repeats.written += 1
        if repeats.written <= _MAX_SIMILAR:
            super().emit(record)
        else:
            repeats.add(record)

    def write_soon(self, level: int, logger: str, message: str, facts: dict[str, Any]) -> None:
        """Write a line at the end of this turn of the event loop, or before the next record."""
        if request_id := CURRENT_REQUEST.get():
            facts["request_id"] = request_id
        name = logging.getLevelName(level)
        line = self._formatter.line(_Entry(now().timestamp(), name, logger, message, facts))
        with self._lock:
            self._lines.append(line)
            is_first = len(self._lines) == 1
        if is_first:
            asyncio.get_running_loop().call_soon(self._write_lines)

    def close(self) -> None:
        """Write the pending lines and summaries."""
        self.acquire()
        try:
            self._write_lines()
            self._write_due(monotonic())
        finally:
            self.release()
        super().close()

    def _write_lines(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        # As in `emit`: a log that cannot be written must not fail a request.
        with contextlib.suppress(OSError, ValueError):
            if lines:
                # Masking all lines at once costs little more than masking one.
                self.stream.write(self._formatter.mask("\n".join([*lines, ""])))
                self.flush()

    def _write_due(self, before: float) -> None:
        # Sorted by age, so that the cost per record does not grow with the number of entries.
        due = itertools.takewhile(lambda one: one[1].since <= before, self._repeats.items())
        for cause, repeats in list(due):
            del self._repeats[cause]
            if repeats.last is not None:
                super().emit(repeats.summary())


class _Repeats:
    """The count of similar records and their fields."""

    def __init__(self, *, since: float) -> None:
        self.since = since
        self.written = 0
        self.last: logging.LogRecord | None = None
        self._count = 0
        self._fields: dict[str, dict[str, None]] = {}

    def add(self, record: logging.LogRecord) -> None:
        """Count a record instead of writing it."""
        self.last = record
        self._count += 1
        for key, value in _facts(record).items():
            if key in _CAUSES:
                continue
            known = self._fields.setdefault(key, {})
            for one in value if isinstance(value, list) else (value,):
                if len(known) < _MAX_FIELD_VALUES:
                    known[str(one)] = None

    def summary(self) -> logging.LogRecord:
        """Return the last record, with the count and the collected fields of all."""
        made = logging.makeLogRecord(vars(self.last) if self.last else {})
        made.exc_info = made.exc_text = None
        for key, known in self._fields.items():
            setattr(made, key, list(known) if len(known) > 1 else next(iter(known), ""))
        made.request_id = ""
        made.repeated = self._count
        return made


def _similarity_key(record: logging.LogRecord) -> tuple[object, ...] | None:
    """Return the key by which records are similar, or None for a record that is always written."""
    reason = getattr(record, "reason", None)
    if record.levelno < logging.WARNING and reason in (None, ""):
        return None
    kind = record.exc_info[0] if record.exc_info else None
    return record.name, record.levelno, record.msg, _ID.sub("", str(reason)), kind


class _Entry(NamedTuple):
    """The fields of a log line; `created` is in seconds since 1970."""

    created: float
    level: str
    logger: str
    message: str
    facts: Mapping[str, Any]
    trace: str = ""


class LineFormatter(logging.Formatter, ABC):
    """Formats records and entries as lines."""

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self._masker = masker

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with secrets masked."""
        message, trace = _encodable(record.getMessage()), _trace(self, record)
        facts = _facts(record)
        entry = _Entry(record.created, record.levelname, record.name, message, facts, trace)
        return self.mask(self.line(entry))

    def mask(self, text: str) -> str:
        """Replace every secret in a text by stars."""
        return self._masker.mask(text)

    @abstractmethod
    def line(self, entry: _Entry) -> str:
        """Format an entry; secrets are not masked yet."""


class TextFormatter(LineFormatter):
    """One line for people: time, level, message, then `key=value` pairs; a traceback follows."""

    def __init__(self, masker: Masker) -> None:
        super().__init__(masker)
        # The date and time of the current second are cached for all its lines.
        self._second = -1
        self._prefix = self._offset = ""

    def line(self, entry: _Entry) -> str:
        """Format an entry as one line."""
        texts = [
            f" {key}={value if type(value) in _NUMBERS else _plain(value)}"
            for key, value in entry.facts.items()
        ]
        pairs = "".join(texts)
        line = f"{self._moment(entry.created)} {entry.level:<7} {_one_line(entry.message)}{pairs}"
        if entry.logger != _OURS and not entry.logger.startswith(_BELOW_OURS):
            line += f" logger={entry.logger}"
        return f"{line}\n{entry.trace}" if entry.trace else line

    def _moment(self, created: float) -> str:
        second = int(created)
        if second != self._second:
            self._second = second
            whole = datetime.fromtimestamp(second, UTC).astimezone().isoformat(sep=" ")
            self._prefix, self._offset = whole[:19], whole[19:]
        return f"{self._prefix}.{int(created * 1000) % 1000:03}{self._offset}"


class JsonFormatter(LineFormatter):
    """One JSON object a line, for machines."""

    def line(self, entry: _Entry) -> str:
        """Format an entry as one JSON object."""
        line: dict[str, Any] = {
            "at": to_stored(datetime.fromtimestamp(entry.created, UTC)),
            "level": entry.level.lower(),
            "logger": entry.logger,
            "message": entry.message,
        }
        for key, value in entry.facts.items():
            line.setdefault(key, _text(value))
        if entry.trace:
            line["exception"] = entry.trace
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(level: str, format: str, *, stream: TextIO | None = None) -> Masker:  # noqa: A002
    """Log to standard error, or to `stream`, and return the masker of its lines.

    Call it once, before anything is logged; a second call replaces the first.
    """
    masker = Masker()
    formatter = JsonFormatter(masker) if format == "json" else TextFormatter(masker)
    handler = RateLimitedHandler(stream or sys.stderr, formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        # At debug level these log requests with their values.
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    return masker


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = {key: _text(value) for key, value in vars(record).items() if key not in _STANDARD}
    request_id = getattr(record, "request_id", "")
    return {**facts, "request_id": request_id} if request_id else facts


def log_fast(logger: logging.Logger, level: int, message: str, facts: dict[str, Any]) -> None:
    """Log like `logger.log`, at a lower cost if the handler of `configure` is the only one."""
    if not logger.isEnabledFor(level):
        return
    handlers = logging.root.handlers
    if len(handlers) == 1 and isinstance(only := handlers[0], RateLimitedHandler):
        only.write_soon(level, logger.name, message, facts)
    else:
        record = logger.makeRecord(logger.name, level, "", 0, message, (), None, extra=facts)
        logger.handle(record)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _plain(value: object) -> str:
    text = str(value)
    if not text.isalnum() and (not text or _UNSAFE.search(text)):
        return msgspec.json.encode(_encodable(text)).decode()
    return _encodable(text)


def _one_line(text: str) -> str:
    """Escape control characters, so that no caller can forge a line."""
    if text.isprintable():
        return text
    # A codec may have to be imported, and this may be about having no file descriptors left.
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _text(value: Any) -> Any:
    return _encodable(value) if isinstance(value, str) else value


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()
