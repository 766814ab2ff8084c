"""Finds the secrets of a user, and hides them in text, whatever form they have there. Pure."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from agentsvc.base import MASK, Secret

SHORTEST: Final = 4
"""Shorter texts than this hide nothing, and stand everywhere."""

_PATTERNS: Final = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|as[vm][ct]_|hf_|npm_|pypi-|AKIA|AIza)[\w-]{12,}
    | (?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    | (?<=://)[^/\s:@]*:[^/\s@]+(?=@)
    | (?<=[Bb]earer\ )[\w.~+/=-]{12,}
    | (?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))(?P<name>[A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]{0,60}=)[^\s\\]{4,}
    """,
    re.VERBOSE | re.DOTALL,
)
"""What looks like a secret, whoever's it is: private keys, tokens, passwords in URLs and variables.
A word may begin behind the `\\n` of a text that is JSON itself."""


def secrets_in(value: Any) -> Iterator[str]:
    """Yield every secret of a record, however deep."""
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
    """Hides secrets in texts: as they are, quoted for JSON and URLs, and in Base64."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Return a text without secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return _PATTERNS.sub(lambda found: f"{found['name'] or ''}{MASK}", text)


def _forms(secret: str) -> Iterator[str]:
    secret = secret.strip()
    if len(secret) < SHORTEST:
        return
    yield secret
    in_json = msgspec.json.encode(secret)[1:-1].decode()
    yield in_json
    yield msgspec.json.encode(in_json)[1:-1].decode()
    yield quote(secret, safe="")
    yield quote_plus(secret)
    # What stands before it moves the letters of Base64; those that it shares with that are left out.
    for shift in range(3):
        encoded = b64encode(b"\0" * shift + secret.encode()).decode()
        form = encoded.rstrip("=")[(0, 2, 3)[shift] : -1]
        if len(form) >= 2 * SHORTEST:
            yield form
            yield form.replace("+", "-").replace("/", "_")
    if len(lines := secret.splitlines()) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= 4 * SHORTEST)
