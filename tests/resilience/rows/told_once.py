"""What users tell agents is told once, in the order of telling, whatever is killed and whenever.

Real agent servers are in the middle of tool calls, ask, are stopped and begin, while the server, the
agent servers and the other processes of sandboxes are killed, stopped and frozen by chance, and
connections cut. Then the log of each agent server and that of the server are held against what was
acknowledged.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.base.supervisor import Supervisor
from agentsvc.base.values import monotonic
from tests.live.events import Event, of_kind, said
from tests.live.installation import HomeFile
from tests.live.scripts import run as running
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.breaker import Breaker, once
from tests.resilience.real import SECONDS, RealServer, real_server
from tests.service import Answer, Client

MESSAGES: Final = 1000
ANSWERS: Final = 300
_TALKS: Final = 4
_INTERVIEWS: Final = 2
_BEGIN: Final = "[script:say] Begin."
_TRIES: Final = 400
_SETTLE_SECONDS: Final = 420.0
_MAX_WAITING: Final = 4
"""How many messages wait for an agent at most, so that faults come while they are told."""
_LONG_TOOLS: Final = 0.1
_LONG_SECONDS: Final = (7.0, 10.0)
_RESTED: Final = 10
"""How often an agent is seen at rest before it is told more."""
_SMALL: Final = 0.01
_TOLD_A_FAULT: Final = 8
"""How much is told until the next fault, about."""
_BEGIN_SECONDS: Final = 30.0
_STOPPED: Final = 0.06
_STARTED: Final = 0.03
"""How often, for a message, an agent is stopped in a tool call, and another one is started."""
_V0: Final = "/api/conversations"
_V1: Final = "/api/v1/app-conversations"
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, AssertionError)
_RESULTS: Final = ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent")


class _StartFailedError(Exception):
    """What is told to a start that has failed is refused for good."""


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
    stops: int = 0
    starts: int = 0
    unlike: list[str] = []
    given_up: list[str] = []
    failed: list[str] = []
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
        self.wishes: Counter[str] = Counter()
        """How often each state was asked for."""

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
        self.wishes[state] += 1
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
        """Return the log of its agent server, as soon as that answers."""
        while True:
            with contextlib.suppress(*_FAILURES):
                return await self._read_log()
            await asyncio.sleep(0.2)

    async def _read_log(self) -> list[Event]:
        seen = await self.seen()
        assert seen["conversation_url"], "its sandbox does not run"
        agent: Client = self.server.client.agent(seen)
        events: list[Event] = []
        page_id = ""
        while True:
            more = f"&page_id={page_id}" if page_id else ""
            path = f"{_V0}/{self.id}/events/search?limit=100&sort_order=TIMESTAMP{more}"
            answer = await agent.get(path)
            assert answer.status == 200, answer.text
            events += answer.json()["items"]
            page_id = answer.json().get("next_page_id") or ""
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
        breaker = Breaker(ground.chance, server, found.faults, is_small=is_small)
        talks, interviews = await _begin(
            server, breaker, *((1, 1) if is_small else (_TALKS, _INTERVIEWS)), scale=ground.scale
        )
        supervisor = Supervisor()
        supervisor.spawn("resumes", breaker.keep_running)
        # The first fault comes when more was said than the first tool call lets through.
        each = 1 if is_small else _TOLD_A_FAULT
        supervisor.spawn("faults", lambda: breaker.go_on(lambda: found.told, each=each, first=3))
        asked, began = [[one] for one in interviews], [[one] for one in talks]
        try:
            async with asyncio.TaskGroup() as group:
                for some, count in zip(began, shares(messages, len(talks)), strict=True):
                    group.create_task(_talk(ground, some, count, found))
                for some, count in zip(asked, shares(answers, len(asked)), strict=True):
                    group.create_task(_interview(ground, some, count, found))
            await breaker.end()
            interviews = [one for some in asked for one in some]
            for one in (*(one for some in began for one in some), *interviews):
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


async def _talk(ground: Ground, talks: list[Talk], count: int, found: Found) -> None:
    """Send messages, each of which has the agent use a tool; each second one says the same.

    Now and again the agent is stopped in a tool call, and another conversation is started.
    """
    chance = ground.chance
    talk, done, stops, starts = talks[0], 0, 0, 0
    while done < count:
        await once(partial(_has_room, talk))
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
        # Said twice, a message has nothing between.
        if done % 2 == 0 and done * _STARTED > starts:
            starts += 1
            talks += await _start(talk, found)
        if done % 2 == 0 and done * _STOPPED > stops:
            stops += 1
            await _stop(ground, talk, stops, found)


async def _stop(ground: Ground, talk: Talk, number: int, found: Found) -> None:
    """Stop an agent in the middle of a tool call, for which a message waits that was said before."""
    name = f"{talk.id} stop {number}"
    begun, beyond = (talk.server.installation.at_home(f"{talk.id}-{one}") for one in ("in", "on"))
    await talk.say(running(f"echo {number} >>{begun}; sleep 9\n"), f"{name} first")
    found.messages += 1
    faults = found.faults.total()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_BEGIN_SECONDS):
            await once(lambda: _has_line(begun, number))
    await talk.say(running(f"echo {number} >>{beyond}\n"), f"{name} then")
    asked_at = monotonic()
    state = ground.chance.choice(("paused", "stopped"))
    await talk.wish(state, name)
    # It may be at rest since its agent server was killed, or have been told late.
    is_early = _has_line(begun, number) and monotonic() - asked_at < 2
    found.told += 3
    found.messages += 1
    found.stops += 1
    await _settled(talk)
    # What a fault holds up may come when the tool is done.
    if is_early and faults == found.faults.total():
        status = (await talk.seen())["execution_status"]
        if status != "paused" or _has_line(beyond, number):
            found.wrong.append(f"{talk.id[:8]}: asked to be {state}, became {status}")


def _has_line(file: HomeFile, number: int) -> bool:
    return file.exists() and str(number) in file.read_text().split()


async def _start(talk: Talk, found: Found) -> list[Talk]:
    """Start a conversation in a sandbox that has one, and tell it more before it has begun."""
    client, name = talk.server.client, f"{talk.id} start {found.starts}"
    found.starts += 1
    body = {
        "sandbox_id": talk.sandbox_id,
        "initial_message": {"content": [{"type": "text", "text": _BEGIN}]},
    }
    headers = {"Idempotency-Key": name}
    tasks: list[dict[str, Any]] = []

    async def start() -> Answer:
        answer = await client.post("/api/v1/app-conversations", json=body, headers=headers)
        tasks[:] = [answer.json()]
        return answer

    await _insist(start)
    begun = Talk(talk.server, "", talk.sandbox_id)
    path = f"/api/v1/conversations/task-{tasks[0]['id']}/pending-messages"

    async def tell(body: dict[str, Any], key: str) -> Answer:
        answer = await client.post(path, json=body, headers={"Idempotency-Key": key})
        if answer.status in (409, 410) and (await client.task(tasks[0]["id"]))["status"] == "ERROR":
            raise _StartFailedError
        return answer

    with contextlib.suppress(_StartFailedError):
        for number in range(3):
            text = f"[script:say] This is number {number}."
            more = {"content": [{"type": "text", "text": text}]}
            if await _insist(partial(tell, more, f"{name} {number}")):
                begun.sent.append(Sent(text=text, is_sure=True))
                found.messages += 1
                found.told += 1
    while True:
        with contextlib.suppress(*_FAILURES):
            task = await client.task(tasks[0]["id"])
            if task["status"] in ("READY", "ERROR"):
                break
        await asyncio.sleep(0.2)
    if task["status"] == "ERROR":
        found.failed.append(f"start {task['id'][:8]}: {task['detail']}"[:300])
        return []
    begun.id = task["app_conversation_id"]
    return [begun]


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
    return _waiting(talk) < _MAX_WAITING


def _waiting(talk: Talk) -> int:
    path = talk.server.installation.data.database
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
        sql = "SELECT count(*) FROM pending_messages WHERE conversation_id = ?"
        return int(db.execute(sql, (talk.id.replace("-", ""),)).fetchone()[0])


async def _compare(talk: Talk, found: Found) -> None:
    """Hold what the agent was told against what was sent."""
    whole = await talk.log()
    log = said(whole, "user")[1:]
    events = await talk.events()
    asked = Counter(one["value"] for one in events if one.get("key") == "asked_agent_state")
    if asked != talk.wishes:
        found.wrong.append(f"{talk.id[:8]}: asked for {talk.wishes}, noted {asked}")
    stops = len(of_kind(whole, "PauseEvent") + of_kind(whole, "InterruptEvent"))
    if stops > talk.wishes["paused"] + talk.wishes["stopped"]:
        found.again.append(f"{talk.id[:8]}: stopped {stops} times, asked for {talk.wishes}")
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
            f" ask, V1 and V0, with and without an Idempotency-Key; {found.stops} stops of agents at"
            f" work, {found.starts} agents told more while they started, of which"
            f" {len(found.failed)} did not start; meanwhile {faults}"
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
