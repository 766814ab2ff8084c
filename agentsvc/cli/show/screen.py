"""Terminal output: plain text, or colour where rich is installed."""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import click

from agentsvc.cli.show.notes import Note, NoteKind
from agentsvc.cli.text import columns


class Screen:
    """A screen for pipes, files and people who want no colour; what it prints stays."""

    def title(self, text: str) -> None:
        """Show the heading of a part."""
        click.echo(f"\n{text}\n")

    def line(self, text: str) -> None:
        """Show one line of explanation; it is never wrapped or cut, so that it can be copied."""
        click.echo(text)

    def busy(self, text: str) -> None:
        """Show what is going on, where the screen can take it back; with no text, stop that."""

    def stage(self, name: str, took: str) -> None:
        """Show one step that is done."""
        click.echo(f"  {name:<26}{took:>8}")

    def note(self, note: Note) -> None:
        """Show one event; what it says stands in a column of its own."""
        head = f"  {note.at}  {note.who:<13}"
        for part in note.parts:
            mark = "| " if part.tone is NoteKind.OUTPUT else ""
            for line in part.text.split("\n"):
                click.echo(f"{head}{mark}{line}".rstrip())
                head = " " * len(head)

    def draft(self, text: str) -> None:
        """Show what the model has said so far, where that can be taken back; with no text, do so."""

    def file(self, path: str, text: str) -> None:
        """Show a whole file."""
        click.echo(f"  {path}")
        for line in text.splitlines():
            click.echo(f"  | {line}".rstrip())

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table; the last row is the sum of the others."""
        for line in columns(head, rows):
            click.echo(f"  {line}")


def open_screen() -> Screen:
    """Return the screen that fits this terminal."""
    plain = (
        not sys.stdout.isatty()
        or bool(os.environ.get("NO_COLOR"))
        or os.environ.get("TERM") == "dumb"
        or find_spec("rich") is None
    )
    if plain:
        return Screen()
    screen: Screen = importlib.import_module("agentsvc.cli.show.colour").ColourScreen()
    return screen
