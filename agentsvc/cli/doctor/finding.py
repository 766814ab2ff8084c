"""The result of one check of `agentsvc doctor`."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """Severity of a finding."""

    FINE = "ok"
    NOTE = "note"
    BAD = "error"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check; `remedy` is a command or an action that fixes it, if any."""

    name: str
    grade: Severity
    text: str
    remedy: str = ""


def fine(name: str, text: str) -> Finding:
    """Return the finding of a passed check."""
    return Finding(name=name, grade=Severity.FINE, text=text)


def note(name: str, text: str, remedy: str = "") -> Finding:
    """Return the finding of a limitation that a server can do without."""
    return Finding(name=name, grade=Severity.NOTE, text=text, remedy=remedy)


def bad(name: str, text: str, remedy: str) -> Finding:
    """Return the finding of a problem that prevents a server from working or being safe."""
    return Finding(name=name, grade=Severity.BAD, text=text, remedy=remedy)
