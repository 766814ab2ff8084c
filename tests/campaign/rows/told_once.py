"""What users tell agents is told once, in the order of telling, whatever is killed and whenever.

Real agent servers are in the middle of tool calls while the server, the agent servers and the other
processes of sandboxes are killed, stopped and frozen by chance. Then the log of each agent server
and that of the server are held against what was acknowledged.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.supervisor import Supervisor
from agentsvc.values import monotonic
from tests.campaign.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.campaign.real import SECONDS, RealServer, real_server
from tests.live.events import Event, of_kind, said
from tests.live.installation import command_line
from tests.live.scripts import run as running
from tests.service import Answer, Client

MESSAGES: Final = 1000
ANSWERS: Final = 300
_TALKS: Final = 4
_INTERVIEWS: Final = 2
_BEGIN: Final = "[script:say] Begin."
_TRIES: Final = 400
_SETTLE_SECONDS: Final = 420.0
_MOST_WAITING: Final = 4
"""How many messages wait for an agent at most, so that faults come while they are told."""
_LONG_TOOLS: Final = 0.1
_LONG_SECONDS: Final = (7.0, 10.0)
_RESTED: Final = 10
"""How often an agent is seen at rest before it is told more."""
_SMALL: Final = 0.01
_TOLD_A_FAULT: Final = 8
"""How much is told until the next fault, about."""
_V0: Final = "/api/conversations"
_V1: Final = "/api/v1/app-conversations"
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, AssertionError)
_RESULTS: Final = ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent")


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and whether it was acknowledged; one that was not may have been told or not."""

    text: str
    is_sure: bool


class Found(msgspec.Struct, kw_only=True):
    """What was done and what is wrong with it."""

    messages: int = 0
    answers: int = 0
    told: int = 0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    lost: list[str] = []
    again: list[str] = []
    order: list[str] = []
    unlike: list[str] = []
    given_up: list[str] = []
    wrong: list[str] = []


class Talk:
    """One conversation, and what its user has told its agent."""

    def __init__(self, server: RealServer, conversation_id: str, sandbox_id: str) -> None:
        self.server = server
        self.id = conversation_id
        self.sandbox_id = sandbox_id
        self.sent: list[Sent] = []
        self.answered: dict[str, bool] = {}
        """What was answered for each action that the agent asked about."""

    async def say(self, text: str, key: str | None) -> bool:
        """Send a message; with a key it is tried until it is taken. Say whether it was taken."""
        body = {"role": "user", "content": [{"type": "text", "text": text}], "run": True}
        path = f"{_V1}/{self.id}/send-message"
        is_sure = await _insist(lambda: self._post(path, body, key), is_once=key is None)
        if is_sure is not None:
            self.sent.append(Sent(text=text, is_sure=is_sure))
        return is_sure is not None

    async def answer(self, action_id: str, *, accept: bool) -> None:
        """Answer what the agent asks about an action, until that is taken."""
        self.answered[action_id] = accept
        state = "user_confirmed" if accept else "user_rejected"
        await self.wish(state, f"{self.id} {action_id}")

    async def wish(self, state: str, key: str) -> None:
        """Ask the agent for a state, in the words of V0, until that is taken."""
        body = {"action": "change_agent_state", "args": {"agent_state": state}}
        await _insist(lambda: self._post(f"{_V0}/{self.id}/events", body, key))

    async def seen(self) -> dict[str, Any]:
        """Return the conversation, as soon as there is a server to ask."""
        while True:
            with contextlib.suppress(*_FAILURES):
                return await self.server.client.conversation(self.id)
            await asyncio.sleep(0.2)

    async def events(self) -> list[Event]:
        """Return what the server has of its events."""
        while True:
            with contextlib.suppress(*_FAILURES):
                return await self.server.client.events(self.id)
            await asyncio.sleep(0.2)

    async def log(self) -> list[Event]:
        """Return the log of its agent server."""
        agent: Client = self.server.client.agent(await self.seen())
        events: list[Event] = []
        page_id = ""
        while True:
            more = f"&page_id={page_id}" if page_id else ""
            path = f"{_V0}/{self.id}/events/search?limit=100&sort_order=TIMESTAMP{more}"
            page = (await agent.get(path)).json()
            events += page["items"]
            page_id = page.get("next_page_id") or ""
            if not page_id:
                return events

    async def _post(self, path: str, body: dict[str, Any], key: str | None) -> Answer:
        headers = {"Idempotency-Key": key} if key else {}
        return await self.server.client.post(path, json=body, headers=headers)


async def _insist(ask: Callable[[], Awaitable[Answer]], *, is_once: bool = False) -> bool | None:
    """Ask until it is taken; say whether it was, None if it surely was not.

    What was not answered is asked for again, unless that could do it twice.
    """
    for _ in range(_TRIES):
        try:
            answer = await ask()
        except _FAILURES:
            if is_once:
                return False
        else:
            if answer.status < 300:
                return True
            if is_once and answer.status >= 500:
                return False
            if is_once and answer.status != 429:
                return None
        await asyncio.sleep(0.3)
    raise TimeoutError("a request was never taken")


class Breaker:
    """Ends what runs, by chance, and brings it back."""

    def __init__(self, ground: Ground, server: RealServer, found: Found) -> None:
        self._chance = ground.chance
        self._server = server
        self._found = found
        self._sandboxes: list[str] = []
        self._is_small = ground.scale < _SMALL
        self._told_a_fault = 1 if self._is_small else _TOLD_A_FAULT
        self._whole = asyncio.Lock()

    def add(self, sandbox_id: str) -> None:
        self._sandboxes.append(sandbox_id)

    async def go_on(self) -> None:
        """Do something bad now and again, as the agents are told more."""
        quick = (self._kill_server, self._stop_server, self._freeze)
        # A server that starts again takes a second, an agent server ten times that.
        ways = quick if self._is_small else (*quick, self._kill_agent, self._kill_any)
        weights = (5, 4, 3, 2, 1)[: len(ways)]
        # The first comes when more was said than the first tool call lets through.
        await _once(partial(self._has_told, 3))
        while True:
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            [way] = self._chance.choices(ways, weights)
            async with self._whole:
                await way()
            more = self._chance.randint(1, 2 * self._told_a_fault)
            await _once(partial(self._has_told, self._found.told + more))

    def _has_told(self, count: int) -> bool:
        return self._found.told >= count

    async def end(self) -> None:
        """Return once nothing that was ended is still down."""
        await self._whole.acquire()

    async def keep_running(self) -> None:
        """Resume each sandbox that has failed, as its user would."""
        while True:
            for sandbox_id in self._sandboxes:
                with contextlib.suppress(*_FAILURES):
                    seen = await self._server.client.sandbox(sandbox_id)
                    if seen is not None and seen["status"] in ("ERROR", "PAUSED"):
                        await self._server.client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")
            await asyncio.sleep(0.5)

    async def _kill_server(self) -> None:
        self._found.faults["kills of the server"] += 1
        await self._server.installation.kill()
        await self._server.installation.start()

    async def _stop_server(self) -> None:
        self._found.faults["stops of the server"] += 1
        await self._server.installation.stop()
        await self._server.installation.start()

    async def _kill_agent(self) -> None:
        pids = self._server.installation.agent_servers(self._chance.choice(self._sandboxes))
        self._signal("kills of agent servers", pids, signal.SIGKILL)

    async def _kill_any(self) -> None:
        """End one of what holds a sandbox, or passes on its connections."""
        processes = self._server.installation.processes(self._chance.choice(self._sandboxes))
        pids = [one.pid for one in processes if b"agentsvc" in command_line(one.pid)]
        if pids:
            self._signal(
                "kills of what holds a sandbox", [self._chance.choice(pids)], signal.SIGKILL
            )

    async def _freeze(self) -> None:
        pids = self._server.installation.agent_servers(self._chance.choice(self._sandboxes))
        self._signal("frozen agent servers", pids, signal.SIGSTOP)
        if self._chance.random() < 0.5:
            await self._kill_server()
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        for pid in pids:
            _send(pid, signal.SIGCONT)

    def _signal(self, what: str, pids: Iterable[int], number: signal.Signals) -> None:
        self._found.faults[what] += 1
        for pid in pids:
            _send(pid, number)


async def _once(is_so: Callable[[], bool]) -> None:
    """Wait for something that tells nobody."""
    for pause in itertools.repeat(0.1):
        if is_so():
            return
        await asyncio.sleep(pause)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def run(ground: Ground) -> Outcome:
    is_small = ground.scale < _SMALL
    messages, answers = ground.count(MESSAGES, least=6), ground.count(ANSWERS, least=2)
    found = Found()
    environment = {
        "AGENTSVC_SANDBOXES__START_SECONDS": str(SECONDS),
        "AGENTSVC_CONVERSATIONS__SYNC_SECONDS": "1",
        # A caller is not kept for long, so that most is acknowledged while the tool runs.
        "AGENTSVC_CONVERSATIONS__HAND_OVER_SECONDS": "0.5",
    }
    async with real_server(ground.place("server"), environment) as server:
        breaker = Breaker(ground, server, found)
        talks, interviews = await _begin(
            server, breaker, *((1, 1) if is_small else (_TALKS, _INTERVIEWS)), scale=ground.scale
        )
        supervisor = Supervisor()
        supervisor.spawn("resumes", breaker.keep_running)
        supervisor.spawn("faults", breaker.go_on)
        try:
            async with asyncio.TaskGroup() as group:
                for talk, count in zip(talks, shares(messages, len(talks)), strict=True):
                    group.create_task(_talk(ground, talk, count, found))
                asked = [[one] for one in interviews]
                for some, count in zip(asked, shares(answers, len(asked)), strict=True):
                    group.create_task(_interview(ground, some, count, found))
            await breaker.end()
            interviews = [one for some in asked for one in some]
            for one in (*talks, *interviews):
                await _settled(one)
                await _compare(one, found)
            for one in interviews:
                await _check_answers(one, found)
        finally:
            await supervisor.stop(SECONDS)
            _copy_log(server.installation.directory / "server.log", ground)
    return _outcome(found, messages, answers)


def _copy_log(log: Path, ground: Ground) -> None:
    """Keep the log beside the results where somebody asks for it."""
    wanted = os.environ.get("CAMPAIGN_LOGS")
    if wanted:
        Path(wanted, f"told-{ground.seed}.log").write_bytes(log.read_bytes())


async def _begin(
    server: RealServer, breaker: Breaker, talks: int, interviews: int, *, scale: float
) -> tuple[list[Talk], list[Talk]]:
    """Start the conversations, in fewer sandboxes where little is told."""
    client = server.client
    count = max(1, round((talks + interviews) * min(1.0, 2 * scale)))
    sandboxes = [(await server.sandbox()).id for _ in range(count)]
    for sandbox_id in sandboxes:
        breaker.add(sandbox_id)

    async def one(number: int) -> Talk:
        sandbox_id = sandboxes[number % len(sandboxes)]
        started = await client.start_conversation(_BEGIN, sandbox_id=sandbox_id)
        await client.wait_for_execution(started, "finished")
        return Talk(server, started, sandbox_id)

    talking = [await one(number) for number in range(talks)]
    await client.save_settings(confirmation_mode=True)
    asking = [await one(talks + number) for number in range(interviews)]
    return talking, asking


async def _talk(ground: Ground, talk: Talk, count: int, found: Found) -> None:
    """Send messages, each of which has the agent use a tool; each second one says the same."""
    chance = ground.chance
    done = 0
    while done < count:
        await _once(partial(_has_room, talk))
        # The first outlasts a restart of the server, as some later ones do.
        is_long = done == 0 or chance.random() < _LONG_TOOLS
        pause = chance.uniform(*_LONG_SECONDS) if is_long else chance.uniform(0.2, 1.5)
        command = f"sleep {pause:.2f}; echo {done // 2} >>$HOME/{talk.id}"
        text = f"{running(command)}\nThis is number {done // 2}."
        if done % 2:
            text = talk.sent[-1].text
        key = f"{talk.id} {done}" if done % 2 or chance.random() < 0.3 else None
        if await talk.say(text, key):
            done += 1
            found.messages += 1
            found.told += 1
        await asyncio.sleep(chance.uniform(0.0, 0.6))


async def _interview(ground: Ground, talks: list[Talk], count: int, found: Found) -> None:
    """Answer what the agent asks, and give it more to ask about; the talk comes with those it had."""
    chance = ground.chance
    rested = 0
    while sum(len(one.answered) for one in talks) < count:
        talk = talks[-1]
        status = (await talk.seen())["execution_status"]
        events = await talk.events()
        action = _open_action(events, talk.answered)
        if status == "waiting_for_confirmation" and action is not None:
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await talk.answer(action, accept=chance.random() < 0.75)
            found.answers += 1
            found.told += 1
        # Said to an agent that asks, a message would come between its question and the answer.
        is_over = status in ("finished", "idle", "error", "paused", "stuck")
        is_told = len(said(events, "user")) > len(talk.sent)
        rested = rested + 1 if is_over and is_told else 0
        if rested >= _RESTED and _is_broken(events):
            talks.append(await _begin_anew(talk))
        elif rested >= _RESTED and _is_taken_up(events):
            rested, told = 0, len(talk.sent)
            commands = [f"echo {told} {number} >>$HOME/{talk.id}" for number in range(8)]
            await talk.say(running(*commands), f"{talk.id} {told}")
        elif rested >= 10 * _RESTED:
            # The agent server was killed when it had the message, and had not begun with it.
            rested = 0
            await talk.wish("running", f"{talk.id} run {chance.random()}")
        await asyncio.sleep(0.1)


def _is_broken(events: Sequence[Event]) -> bool:
    """Whether the model refuses what the agent server made of its log after it was killed."""
    refusals = 0
    for one in reversed(events):
        if one["kind"] == "ActionEvent":
            break
        refusals += one["kind"] == "ConversationErrorEvent"
    return refusals > 1


async def _begin_anew(talk: Talk) -> Talk:
    while True:
        with contextlib.suppress(*_FAILURES):
            begun = await talk.server.client.start_conversation(_BEGIN, sandbox_id=talk.sandbox_id)
            return Talk(talk.server, begun, talk.sandbox_id)
        await asyncio.sleep(1)


def _is_taken_up(events: Sequence[Event]) -> bool:
    """Whether the agent has done anything since its user spoke last."""
    for one in reversed(events):
        if one["kind"] == "MessageEvent" and one["source"] == "user":
            return False
        if one["kind"] in ("MessageEvent", "ActionEvent", "ConversationErrorEvent"):
            return True
    return False


def _open_action(events: Sequence[Event], answered: dict[str, bool]) -> str | None:
    """Return the action that is asked about and has not been answered yet."""
    ended = {one.get("tool_call_id") for one in events if one["kind"] in _RESULTS}
    for one in reversed(of_kind(events, "ActionEvent")):
        if one["tool_call_id"] not in ended and one["id"] not in answered:
            return str(one["id"])
    return None


async def _settled(talk: Talk) -> None:
    """Wait until nothing is kept for the agent any more and it is at rest."""
    deadline = monotonic() + _SETTLE_SECONDS
    rested = 0
    while rested < 5:
        assert monotonic() < deadline, f"still waiting: {_waiting(talk)}"
        seen = await talk.seen()
        is_up = seen["sandbox_status"] == "RUNNING"
        is_busy = seen["execution_status"] == "running"
        rested = rested + 1 if is_up and not is_busy and not _waiting(talk) else 0
        await asyncio.sleep(0.5)


def _has_room(talk: Talk) -> bool:
    return _waiting(talk) < _MOST_WAITING


def _waiting(talk: Talk) -> int:
    path = talk.server.installation.data.database
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
        sql = "SELECT count(*) FROM pending_messages WHERE conversation_id = ?"
        return int(db.execute(sql, (talk.id.replace("-", ""),)).fetchone()[0])


async def _compare(talk: Talk, found: Found) -> None:
    """Hold what the agent was told against what was sent."""
    log = said(await talk.log(), "user")[1:]
    events = await talk.events()
    found.given_up += [
        one["detail"][:200] for one in events if one.get("code") == "MessageNotDelivered"
    ]
    sure = Counter(one.text.strip() for one in talk.sent if one.is_sure)
    most = Counter(one.text.strip() for one in talk.sent)
    told = Counter(log)
    name = talk.id[:8]
    found.lost += [f"{name}: {text!r}"[-80:] for text in (sure - told).elements()]
    found.again += [f"{name}: {text!r}"[-80:] for text in (told - most).elements()]
    if sure - told == Counter() == told - most and not fits(talk.sent, log):
        found.order.append(f"{name}: {log}"[:2000])
    ours = said(events, "user")[1:]
    if ours != log:
        found.unlike.append(f"{name}: {len(ours)} in ours, {len(log)} in the agent's")


def fits(sent: Sequence[Sent], told: Sequence[str]) -> bool:
    """Whether these texts are what was sent in that order, some of what is not sure left out."""
    reached = {0}
    for one in sent:
        text = one.text.strip()
        after = {at + 1 for at in reached if at < len(told) and told[at] == text}
        reached = after if one.is_sure else after | reached
    return len(told) in reached


async def _check_answers(talk: Talk, found: Found) -> None:
    """Hold what became of each action against what was answered for it."""
    log = await talk.log()
    for action in of_kind(log, "ActionEvent"):
        if action["tool_name"] != "terminal":
            continue
        ends = [
            one["kind"]
            for one in log
            if one["kind"] in _RESULTS and one["tool_call_id"] == action["tool_call_id"]
        ]
        accept = talk.answered.get(action["id"])
        right = {
            True: (["ObservationEvent"], ["AgentErrorEvent"]),
            False: (["UserRejectObservation"], ["AgentErrorEvent"]),
            None: ([], ["AgentErrorEvent"]),
        }[accept]
        if ends not in right:
            found.wrong.append(f"{talk.id[:8]}: answered {accept}, became {ends}")
    file = talk.server.installation.at_home(talk.id)
    lines = Counter(file.read_text().splitlines() if file.exists() else ())
    found.again += [f"{talk.id[:8]}: ran {line!r} {n} times" for line, n in lines.items() if n > 1]


def _outcome(found: Found, messages: int, answers: int) -> Outcome:
    faults = ", ".join(f"{count} {what}" for what, count in sorted(found.faults.items()))
    return Outcome(
        did=(
            f"messages to {_TALKS} agents in the middle of tool calls and answers to {_INTERVIEWS} that"
            f" ask, V1 and V0, with and without an Idempotency-Key; meanwhile {faults}"
        ),
        figures=(
            Figure(what="messages", value=found.messages, at_least=messages),
            Figure(what="answers", value=found.answers, at_least=answers),
            zero("acknowledged and not told", found.lost),
            zero("told more than once", found.again),
            zero("conversations told in another order", found.order),
            zero("conversations whose log is not that of the agent", found.unlike),
            zero("actions that became something else than was answered", found.wrong),
            zero("given up", found.given_up),
        ),
        problems=tuple(
            found.lost + found.again + found.order + found.unlike + found.wrong + found.given_up
        ),
    )


ROW: Final = Row(name="told", half=Half.LOST, promise="agents are told once, in order", run=run)
