"""Transfer of a conversation's history to the agent server of a new sandbox.

An agent server loads the event files in a conversation's directory when the conversation is created
there. So they are uploaded before that, with the file names that the agent server uses.
"""

import shlex
import tarfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer
from agentsvc.base import StartRefused, reason_of
from agentsvc.conversations.event_ingestor import event_time
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import EventQuery
from agentsvc.conversations.history import (
    HistoryLine,
    Step,
    lines_of,
    moved_event,
    moved_id,
    read_step,
    with_prompt,
    without_parent,
)

_PAGE: Final = 25
_REMEDY: Final = "Start the conversation again; if that fails, too, begin without the history"
_SHOWN: Final = 1000
_UNPACK: Final = (
    'd="${{OH_CONVERSATIONS_PATH:-workspace/conversations}}"/{conversation}/events;'
    ' rm -rf "$d" && mkdir -p "$d" && tar --no-same-owner -C "$d" -xf {file};'
    " code=$?; rm -f {file}; exit $code"
)


class HistoryTransfer:
    """Uploads the stored history of a conversation to an agent server that does not have it yet."""

    def __init__(self, events: EventLog, *, time_limit: float) -> None:
        self._events = events
        self._time_limit = time_limit

    async def bring(
        self, conversation_id: str, agent: AgentServer, *, old_dir: str | None, new_dir: str
    ) -> bool:
        """Upload the history to the agent server's directory; return whether that was done.

        It is not done without a history, or if the agent server has the conversation already.
        Raises StartRefused if it cannot be unpacked in the sandbox.
        """
        steps: list[Step] = []
        async for page in self._events.pages(conversation_id, EventQuery(logged=True), limit=_PAGE):
            steps += filter(None, map(read_step, page))
        lines = with_prompt(lines_of(steps), steps)
        if not lines or await agent.find_conversation(conversation_id) is not None:
            return False
        moved = moved_event(conversation_id, event_time(), old_dir=old_dir, new_dir=new_dir)
        lines.append(HistoryLine(id=moved["id"], made=moved))
        file = f"{await agent.home()}/.agentsvc-history-{conversation_id}.tar"
        async with aclosing(self._pack(conversation_id, lines)) as parts:
            await agent.upload(file, parts, time_limit=self._time_limit)
        command = _UNPACK.format(conversation=conversation_id, file=shlex.quote(file))
        result = await agent.run_command(command, time_limit=self._time_limit)
        if result.exit_code != 0:
            text = f"{result.stdout}\n{result.stderr}".strip()[-_SHOWN:]
            cause = "The history could not be brought into the sandbox"
            raise StartRefused(reason_of(cause, _REMEDY, text))
        return True

    async def find_end(self, conversation_id: str, agent: AgentServer, *, is_brought: bool) -> str:
        """Return the id of the last uploaded event, or "" if the agent server has loaded none.

        If this start has uploaded the history and it was not loaded, delete the conversation there
        and raise StartRefused.
        """
        last = moved_id(conversation_id)
        page: list[bytes] = await anext(aiter(agent.event_pages(conversation_id, first=last)), [])
        if page and last.encode() in page[0]:
            return last
        if not is_brought:
            return ""
        await agent.delete_conversation(conversation_id)
        raise StartRefused(
            "The agent server of this sandbox does not read the history of a copied conversation."
            " Choose a sandbox spec with a newer one"
        )

    async def _pack(
        self, conversation_id: str, lines: list[HistoryLine]
    ) -> AsyncGenerator[bytes, None]:
        """Yield a tar file of the events, one event at a time."""
        for number, line in enumerate(lines):
            if line.made is None:
                [event] = await self._events.find_many(conversation_id, [line.id])
                # The event is gone if the conversation is being deleted; the next step notices.
                body = without_parent(event.body) if event is not None else b"{}"
            else:
                body = msgspec.json.encode(line.made)
            yield _member(f"event-{number:05d}-{line.id}.json", body)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, data: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return b"".join((info.tobuf(format=tarfile.PAX_FORMAT), data, padding))
