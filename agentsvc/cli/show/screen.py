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
    """Plain output for pipes, files and NO_COLOR; printed lines are never changed."""

    def title(self, text: str) -> None:
        """Show a heading."""
        click.echo(f"\n{text}\n")

    def line(self, text: str) -> None:
        """Show one line, never wrapped or truncated, so that it can be copied."""
        click.echo(text)

    def busy(self, text: str) -> None:
        """Show a progress text if the screen can erase it later; an empty text erases it."""

    def stage(self, name: str, took: str) -> None:
        """Show a completed step and its duration."""
        click.echo(f"  {name:<26}{took:>8}")

    def note(self, note: Note) -> None:
        """Show one event, with its text in a separate column."""
        head = f"  {note.at}  {note.who:<13}"
        for part in note.parts:
            mark = "| " if part.tone is NoteKind.OUTPUT else ""
            for line in part.text.split("\n"):
                click.echo(f"{head}{mark}{line}".rstrip())
                head = " " * len(head)

    def draft(self, text: str) -> None:
        """Show the model's partial answer if the screen can erase it later; an empty text erases it."""

    def file(self, path: str, text: str) -> None:
        """Show a file."""
        click.echo(f"  {path}")
        for line in text.splitlines():
            click.echo(f"  | {line}".rstrip())

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table whose last row is the total."""
        for line in columns(head, rows):
            click.echo(f"  {line}")


def open_screen() -> Screen:
    """Return a colour screen if the terminal and rich allow it, otherwise a plain one."""
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
