"""The demo's screen in colour. Needs the extra `cli`, so nothing imports it at its top."""

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
    """Return what is shown of a part: what the agent says is Markdown."""
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
        """Show the heading of a part."""
        self._console.print()
        self._console.rule(Text(text, style="bold blue"), align="left", style="blue")
        self._console.print()

    def line(self, text: str) -> None:
        """Show one line of explanation."""
        self._console.print(Text(text), soft_wrap=True)

    def busy(self, text: str) -> None:
        """Show what is going on beside a spinner, or stop that."""
        if text:
            self._status.update(Text(text, style="dim"))
            self._status.start()
        else:
            self._status.stop()

    def stage(self, name: str, took: str) -> None:
        """Show one step that is done."""
        text = Text.assemble(("  ✓ ", "bold green"), f"{name:<26}", (f"{took:>8}", "dim"))
        self._console.print(text)

    def note(self, note: Note) -> None:
        """Show one event; what it says stands in a column of its own."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=8, no_wrap=True)
        grid.add_column(width=11, no_wrap=True)
        grid.add_column(overflow="fold")
        text = Group(*(_rendered(part) for part in note.parts))
        grid.add_row(Text(note.at, style="dim"), Text(note.who, style="blue"), text)
        self._console.print(Padding(grid, (0, 0, 0, 2)))

    def draft(self, text: str) -> None:
        """Show the end of what the model has said so far, as much as fits, or take that back."""
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
        """Show a whole file."""
        # Not guessed: that would load every language there is.
        lexer = "python" if path.endswith(".py") else "text"
        shown = Syntax(text.rstrip("\n"), lexer, background_color="default", word_wrap=True)
        panel = Panel(shown, title=Text(path), title_align="left", border_style="green")
        self._console.print(panel)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table; the last row is the sum of the others."""
        table = Table(*head[:1], box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for name in head[1:]:
            table.add_column(name, justify="right")
        for row in rows[:-1]:
            table.add_row(*map(Text, row))
        table.add_section()
        table.add_row(*(Text(cell, style="bold") for cell in rows[-1]))
        self._console.print(Padding(table, (0, 0, 0, 2)))
