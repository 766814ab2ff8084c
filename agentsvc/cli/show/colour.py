"""Colour output with rich. Needs the extra `cli`, so it is imported only when used."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agentsvc.cli.show.notes import Note, NoteKind, NotePart
from agentsvc.cli.show.screen import Screen

_STYLES: Final = {
    NoteKind.USER: "bold magenta",
    NoteKind.AGENT: "bold",
    NoteKind.COMMAND: "cyan",
    NoteKind.OUTPUT: "green",
    NoteKind.STATE: "dim",
    NoteKind.ERROR: "bold red",
    NoteKind.ADDED: "green",
    NoteKind.REMOVED: "red",
}


def _rendered(part: NotePart) -> RenderableType:
    """Return the rendered part; text of the agent is Markdown."""
    if part.tone is NoteKind.AGENT:
        return Markdown(part.text)
    return Text(part.text, style=_STYLES[part.tone])


class ColourScreen(Screen):
    """A screen for terminals, drawn by rich."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._status = self._console.status("")
        self._draft: Live | None = None

    def title(self, text: str) -> None:
        """Show a heading."""
        self._console.print()
        self._console.rule(Text(text, style="bold blue"), align="left", style="blue")
        self._console.print()

    def line(self, text: str) -> None:
        """Show one line, never truncated."""
        self._console.print(Text(text), soft_wrap=True)

    def busy(self, text: str) -> None:
        """Show a progress text beside a spinner; an empty text stops it."""
        if text:
            self._status.update(Text(text, style="dim"))
            self._status.start()
        else:
            self._status.stop()

    def stage(self, name: str, took: str) -> None:
        """Show a completed step and its duration."""
        text = Text.assemble(("  ✓ ", "bold green"), f"{name:<26}", (f"{took:>8}", "dim"))
        self._console.print(text)

    def note(self, note: Note) -> None:
        """Show one event, with its text in a separate column."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=8, no_wrap=True)
        grid.add_column(width=11, no_wrap=True)
        grid.add_column(overflow="fold")
        text = Group(*(_rendered(part) for part in note.parts))
        grid.add_row(Text(note.at, style="dim"), Text(note.who, style="blue"), text)
        self._console.print(Padding(grid, (0, 0, 0, 2)))

    def draft(self, text: str) -> None:
        """Show as many last lines of the model's partial answer as fit; an empty text erases them."""
        if not text:
            if self._draft is not None:
                self._draft.stop()
                self._draft = None
            return
        if self._draft is None:
            self._status.stop()
            self._draft = Live(console=self._console, transient=True, refresh_per_second=12)
            self._draft.start()
        lines = text.splitlines()[-max(self._console.height - 4, 4) :]
        self._draft.update(Padding(Markdown("\n".join(lines)), (0, 0, 0, 25)))

    def file(self, path: str, text: str) -> None:
        """Show a file."""
        # Do not let rich guess, which would load every lexer.
        lexer = "python" if path.endswith(".py") else "text"
        shown = Syntax(text.rstrip("\n"), lexer, background_color="default", word_wrap=True)
        panel = Panel(shown, title=Text(path), title_align="left", border_style="green")
        self._console.print(panel)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table whose last row is the total."""
        table = Table(*head[:1], box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for name in head[1:]:
            table.add_column(name, justify="right")
        for row in rows[:-1]:
            table.add_row(*map(Text, row))
        table.add_section()
        table.add_row(*(Text(cell, style="bold") for cell in rows[-1]))
        self._console.print(Padding(table, (0, 0, 0, 2)))
