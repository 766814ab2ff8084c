"""Collects the secrets of a user, and masks them in texts in all their encodings. Pure."""

import json
import re
from array import array
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from agentsvc.base import MASK, Secret

SHORTEST: Final = 4
"""Minimum length of a masked secret: shorter ones occur in all texts, so they are not masked."""

_PATTERNS: Final = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|as[vm][ct]_|hf_|npm_|pypi-|AKIA|AIza)[\w-]{12,}
    | (?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    | (?<=://)[^/\s:@]*:[^/\s@]+(?=@)
    | (?<=[Bb]earer\ )[\w.~+/=-]{12,}
    | (?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))(?P<name>[A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]{0,60}=)[^\s\\]{4,}
    | (?P<asked>[?&](?i:[\w-]{0,30}(?:key|token|secret|password|signature))=)[^&\s\\"'<>]{4,}
    """,
    re.VERBOSE | re.DOTALL,
)
"""Patterns of secrets in general: private keys, tokens, passwords in URLs and variables.
A word may begin after the `\\n` of a text that is JSON itself."""
_WRAPPED: Final = 32
"""Longer texts may be wrapped into several lines, as `base64` does."""
_breaks: Final = re.compile(r"\s|(?<!\\)\\++[nrt]")
"""Line breaks, also escaped ones; a run of backslashes is scanned only once."""


def secrets_in(value: Any) -> Iterator[str]:
    """Yield every secret in a record, at any depth."""
    match value:
        case Secret():
            yield value.reveal()
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from secrets_in(getattr(value, name))
        case Mapping():
            for item in value.values():
                yield from secrets_in(item)
        case list() | tuple():
            for item in value:
                yield from secrets_in(item)
        case _:
            return


class Masker:
    """Masks secrets in texts: plain, escaped for JSON, URLs and HTML, in Base64 and in hex.

    Long ones are also found if they are wrapped into several lines.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._long = [one for one in self._forms if len(one) > _WRAPPED and not _breaks.search(one)]

    def mask(self, text: str) -> str:
        """Replace all secrets in a text."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        if self._long and len(text) > _WRAPPED:
            text = self._mask_wrapped(text)
        return _PATTERNS.sub(lambda found: f"{found['name'] or found['asked'] or ''}{MASK}", text)

    def _mask_wrapped(self, text: str) -> str:
        """Replace secrets that are wrapped into several lines."""
        joined = _breaks.sub("", text)
        found = [form for form in self._long if form in joined]
        if not found:
            return text
        # The start of each part between two breaks, in the joined and in the original text.
        in_joined, in_text, removed = array("q", [0]), array("q", [0]), 0
        for line_break in _breaks.finditer(text):
            removed += len(line_break[0])
            in_joined.append(line_break.end() - removed)
            in_text.append(line_break.end())

        def position(at: int) -> int:
            part = bisect_right(in_joined, at) - 1
            return in_text[part] + at - in_joined[part]

        pieces, end = [], 0
        for first, last in sorted(span for form in found for span in _spans(joined, form)):
            pieces += [text[end : position(first)], MASK]
            end = max(end, position(last) + 1)
        return "".join((*pieces, text[end:]))


def _spans(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each occurrence of a form in a text."""
    at = text.find(form)
    while at >= 0:
        yield at, at + len(form) - 1
        at = text.find(form, at + len(form))


def _forms(secret: str) -> Iterator[str]:
    secret = secret.strip()
    if len(secret) < SHORTEST:
        return
    for quoted in {secret, escape(secret), escape(secret, quote=False)}:
        yield quoted
        yield from _in_json(quoted)
    yield from (quote(secret, safe=safe) for safe in ("", "/", "!*'()"))
    yield quote_plus(secret)
    yield secret.encode().hex()
    yield secret.encode().hex().upper()
    # Preceding bytes shift the characters of Base64; those that also encode other bytes are omitted.
    for shift in range(3):
        encoded = b64encode(b"\0" * shift + secret.encode()).decode()
        form = encoded.rstrip("=")[(0, 2, 3)[shift] : -1]
        if len(form) >= 2 * SHORTEST:
            yield form
            yield form.replace("+", "-").replace("/", "_")
    if len(lines := secret.splitlines()) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= 4 * SHORTEST)


def _in_json(text: str) -> Iterator[str]:
    for ensure_ascii in (False, True):
        quoted = text
        # JSON may be nested in strings of JSON.
        for _ in range(3):
            quoted = json.dumps(quoted, ensure_ascii=ensure_ascii)[1:-1]
            yield quoted
            # The form of programs that escape JSON for HTML.
            yield quoted.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
