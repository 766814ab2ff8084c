"""The methods of the protocol; sessions are conversations of a server."""

import threading
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from typing import Any, Final

from agentsvc.cli.extension import (
    VERSION,
    Api,
    CommandFailed,
    StreamMessage,
    ask_agent,
    check_text,
    find_conversation,
    wake,
)
from agentsvc.extension.reading import member

from .config import OrderQuery
from .connection import INVALID_PARAMS, METHOD_NOT_FOUND, Connection, Params, RequestFailed
from .updates import Json, chunk, to_content, tool_call_of, updates_of

PROTOCOL_VERSION: Final = 1
"""The version of the protocol."""

_CONVERSATIONS: Final = "/api/v1/app-conversations"
_POLL_SECONDS: Final = 0.3
_RETRY_SECONDS: Final = 0.5
_MAX_BREAKS: Final = 60
_ENDED: Final = ("finished", "error", "stuck", "paused")
_ALLOW, _REJECT = "allow", "reject"
_OPTIONS: Final = (
    {"optionId": _ALLOW, "name": "Allow", "kind": "allow_once"},
    {"optionId": _REJECT, "name": "Reject", "kind": "reject_once"},
)
_REJECTED: Final = "The user rejected this action."


class Session:
    """A conversation, and how much of it the editor has received."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.last = -1
        """The number of the last event sent to the editor."""
        self.status = ""
        self.said = ""
        """The last prompt of the editor, which is not sent back to it."""
        self.draft = ""
        """The part of an incomplete message that was sent to the editor."""
        self.open: dict[str, Json] = {}
        """The actions without a result, by id."""
        self.is_cancelled = False
        self.is_rejected = False
        """Whether the user has rejected an action, after which the agent stops."""
        self.turn = threading.Lock()


class Agent:
    """Handles the requests of an editor."""

    def __init__(self, api: Api, connection: Connection, order: OrderQuery) -> None:
        self._api = api
        self._connection = connection
        self._order = order
        self._sessions: dict[str, Session] = {}
        self._methods: dict[str, Callable[[Params], Any]] = {
            "initialize": self._initialize,
            "authenticate": lambda _: {},
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": partial(self._load, is_shown=False),
            "session/list": self._list,
            "session/prompt": self._prompt,
            "session/cancel": self._cancel,
        }

    def answer(self, method: str, params: Params) -> Any:
        """Return the result of a request; raises RequestFailed or CommandFailed."""
        handle = self._methods.get(method)
        if handle is None:
            raise RequestFailed(METHOD_NOT_FOUND, f"There is no method `{method}`")
        return handle(params)

    def _initialize(self, _params: Params) -> Json:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "agentsvc", "title": "agentsvc", "version": VERSION},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}},
            },
            "authMethods": [],
        }

    def _new(self, _params: Params) -> Json:
        body = {
            "selected_repository": self._order.repository,
            "selected_branch": self._order.branch,
            "llm_model": self._order.model,
        }
        task = self._api.call("POST", _CONVERSATIONS, body=body)
        while task["status"] not in ("READY", "ERROR"):
            self._connection.check()
            time.sleep(_POLL_SECONDS)
            query = {"ids": task["id"]}
            [task] = self._api.call("GET", f"{_CONVERSATIONS}/start-tasks", query=query)
            if task is None:
                raise CommandFailed("the conversation was deleted")
        if task["status"] == "ERROR":
            raise CommandFailed(str(task["detail"]))
        session_id = str(task["app_conversation_id"])
        self._sessions[session_id] = Session(session_id)
        return {"sessionId": session_id}

    def _load(self, params: Params, *, is_shown: bool = True) -> Json:
        """Open a conversation, and send its history to the editor if `is_shown`."""
        session = Session(find_conversation(self._api, str(params.get("sessionId")))["id"])
        self._catch_up(session, is_shown=is_shown)
        self._sessions[session.id] = session
        return {}

    def _list(self, params: Params) -> Json:
        query = {"page_id": cursor} if isinstance(cursor := params.get("cursor"), str) else None
        page = self._api.call("GET", f"{_CONVERSATIONS}/search", query=query)
        sessions = [
            {
                "sessionId": one["id"],
                "cwd": "/",
                "title": one["title"],
                "updatedAt": one["updated_at"],
            }
            for one in page["items"]
        ]
        return {"sessions": sessions, "nextCursor": page["next_page_id"]}

    def _prompt(self, params: Params) -> Json:
        session = self._session(params)
        content = to_content(params.get("prompt"))
        session.said = "\n".join(part.get("text", "") for part in content)
        if not any(part["type"] == "image" for part in content):
            check_text(session.said, "prompt")
        with session.turn:
            session.is_cancelled = session.is_rejected = False
            wake(self._api, find_conversation(self._api, session.id))
            self._catch_up(session)
            if session.is_cancelled:
                return {"stopReason": "cancelled"}
            session.status = session.draft = ""
            session.open.clear()
            body = {"role": "user", "content": content, "run": True}
            self._api.call("POST", f"{_CONVERSATIONS}/{session.id}/send-message", body=body)
            return {"stopReason": self._follow(session)}

    def _cancel(self, params: Params) -> None:
        session = self._session(params)
        session.is_cancelled = True
        ask_agent(self._api, find_conversation(self._api, session.id), "interrupt")

    def _session(self, params: Params) -> Session:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise RequestFailed(INVALID_PARAMS, "There is no such session; load it first")
        return session

    # Events

    def _catch_up(self, session: Session, *, is_shown: bool = True) -> None:
        """Process the events so far."""
        for message in self._api.stream(_stream(session), after=session.last):
            if message.type == "ready":
                return
            if message.type == "event":
                self._on_event(session, message, is_shown=is_shown)

    def _follow(self, session: Session) -> str:
        """Send updates until the agent's turn ends; return the reason of the end."""
        breaks = 0
        while True:
            seen = session.last
            try:
                reason = self._read(session)
            except (OSError, HTTPException, CommandFailed) as exc:
                reason = None
                if breaks >= _MAX_BREAKS:
                    raise CommandFailed(f"the connection to the server was lost: {exc}") from exc
            if reason is not None:
                return reason
            breaks = 0 if session.last != seen else breaks + 1
            self._connection.check()
            time.sleep(_RETRY_SECONDS)

    def _read(self, session: Session) -> str | None:
        for message in self._api.stream(_stream(session), after=session.last, beats=True):
            self._connection.check()
            match message.type:
                case "event":
                    self._on_event(session, message)
                case "delta":
                    self._on_delta(session, str(message.data.get("content") or ""))
                case "end":
                    return "end_turn"
                case _:
                    pass
            if (reason := self._react(session)) is not None:
                return reason
        return None

    def _react(self, session: Session) -> str | None:
        """React to the agent's status; return the reason if the turn ends, or None."""
        status, session.status = session.status, ""
        if status == "waiting_for_confirmation":
            self._confirm(session)
            return None
        # After all rejections have arrived, the agent is idle.
        if status in _ENDED or (session.is_rejected and not session.open):
            return "cancelled" if session.is_cancelled else "end_turn"
        return None

    def _confirm(self, session: Session) -> None:
        """Ask the editor's user to confirm all open actions at once."""
        actions = list(session.open.values())
        call = tool_call_of(actions[-1]) if actions else {"toolCallId": session.id}
        if len(actions) > 1:
            call["title"] = "; ".join(tool_call_of(one)["title"] for one in actions)
        question = {"sessionId": session.id, "toolCall": call, "options": list(_OPTIONS)}
        found = self._connection.ask("session/request_permission", question)
        outcome = found.get("outcome") if isinstance(found, dict) else None
        is_allowed = isinstance(outcome, dict) and outcome.get("optionId") == _ALLOW
        body = {"accept": is_allowed, **({} if is_allowed else {"reason": _REJECTED})}
        conversation = find_conversation(self._api, session.id)
        ask_agent(self._api, conversation, "events/respond_to_confirmation", body)
        session.is_rejected = not is_allowed

    def _on_event(self, session: Session, message: StreamMessage, *, is_shown: bool = True) -> None:
        event = message.data
        session.last = session.last if message.id is None else message.id
        if event.get("kind") == "ActionEvent":
            session.open[str(event.get("id"))] = event
        elif event.get("action_id"):
            session.open.pop(str(event["action_id"]), None)
        if event.get("key") == "execution_status":
            session.status = str(event.get("value"))
        for update in updates_of(event) if is_shown else ():
            self._show(session, update)

    def _show(self, session: Session, update: Json) -> None:
        """Send an update, without the editor's own prompt and text already sent as deltas."""
        kind, text = update["sessionUpdate"], str(member(update, "content").get("text", ""))
        if kind == "user_message_chunk" and text == session.said:
            session.said = ""
            return
        if kind == "agent_message_chunk" and session.draft:
            draft, session.draft = session.draft, ""
            rest = text.removeprefix(draft)
            for left in chunk(kind, rest if rest != text else f"\n\n{text}"):
                self._send(session, left)
            return
        self._send(session, update)

    def _on_delta(self, session: Session, text: str) -> None:
        session.draft += text
        for update in chunk("agent_message_chunk", text):
            self._send(session, update)

    def _send(self, session: Session, update: Json) -> None:
        params = {"sessionId": session.id, "update": update}
        self._connection.notify("session/update", params)


def _stream(session: Session) -> str:
    return f"/api/v1/conversation/{session.id}/events/stream"
