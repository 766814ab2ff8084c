"""The result of one check of `agentsvc doctor`."""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """Severity of a finding."""

    FINE = "ok"
    NOTE = "note"
    BAD = "error"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was checked; `remedy` is a command or an action where there is one."""

    name: str
    grade: Severity
    text: str
    remedy: str = ""


def fine(name: str, text: str) -> Finding:
    """Return a check that passed."""
    return Finding(name=name, grade=Severity.FINE, text=text)


def note(name: str, text: str, remedy: str = "") -> Finding:
    """Return something a server can do without."""
    return Finding(name=name, grade=Severity.NOTE, text=text, remedy=remedy)


def bad(name: str, text: str, remedy: str) -> Finding:
    """Return a problem that keeps a server from working or from being safe."""
    return Finding(name=name, grade=Severity.BAD, text=text, remedy=remedy)
