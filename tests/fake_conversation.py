"""One conversation of the FakeAgent: it plays a script and writes the events a real one would."""

import asyncio
import contextlib
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import MASK, dashed, new_id, now
from agentsvc.testing.llm import Playbook, Reply, ToolCall, Turn

type Json = dict[str, Any]
type UseTool = Callable[[str, Mapping[str, Any]], tuple[Json, float]]
"""Begins what a tool call asks for; returns its observation and the seconds it takes."""

_ERROR_CODES: Final = {
    400: ("LLMBadRequestError", "config"),
    401: ("LLMAuthenticationError", "auth"),
    404: ("NotFoundError", "config"),
    429: ("LLMRateLimitError", "rate_limit"),
}
_OTHER_ERROR: Final = ("LLMServiceUnavailableError", "transient")
_OTHER_AGENT: Final[Json] = {"llm": {"model": "acp-managed"}}
_HARMLESS: Final = ("finish", "think")


class FakeConversation:
    """A conversation as the agent server keeps it: its record, its events and its run."""

    def __init__(
        self,
        body: Json,
        playbook: Playbook,
        *,
        use_tool: UseTool,
        emit: Callable[[Json], None],
        title: str | None,
    ) -> None:
        self.id = str(body["conversation_id"]).replace("-", "")
        self.body = body
        self.status = "idle"
        self.title: str | None = None
        self.tags: dict[str, str] = dict(body.get("tags") or {})
        self.policy: Json = body.get("confirmation_policy") or {"kind": "NeverConfirm"}
        self.events: list[Json] = []
        self.cost = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.step_lock = asyncio.Lock()
        self.stops = 0
        """How often it was told to stop."""
        self._playbook = playbook
        self._use_tool = use_tool
        self._emit = emit
        self._auto_title = title if body.get("autotitle", True) else None
        self._created_at = _time() + "Z"
        self._messages: list[Json] = []
        self._last_said: str | None = None
        self._step = 0
        self._pending: list[tuple[Json, ToolCall]] = []
        self._stop = asyncio.Event()
        self._is_pausing = False
        self._is_lost = False

    def remember(self, history: Sequence[Json]) -> None:
        """Begin with the events that lie in its directory already."""
        self.events += history
        for event in history:
            if event["kind"] == "MessageEvent":
                said = event["llm_message"]
                text = "".join(part["text"] for part in said["content"])
                self._messages.append({"role": said["role"], "content": text})

    # What is asked of it

    def add_message(self, content: Sequence[Mapping[str, Any]]) -> None:
        """Take a message of the user; the next run answers it."""
        text = "".join(str(part.get("text") or "") for part in content)
        is_first = not any(one["role"] == "user" for one in self._messages)
        if is_first:
            self.add("SystemPromptEvent", "agent", system_prompt=_text("You are a fake."), tools=[])
        elif self.status in ("finished", "stuck"):
            self.set_status("idle")
        message = {"role": "user", "content": [_text(text)], "thinking_blocks": []}
        event = self.add("MessageEvent", "user", llm_message=message, activated_skills=[])
        self._last_said = event["id"]
        self.add_state("last_user_message_id", event["id"])
        self._messages.append({"role": "user", "content": text})
        self._step = 0
        if self.title is None:
            self.title = self._auto_title

    async def run(self) -> None:
        """Play the script until it ends, waits or is stopped."""
        self._stop.clear()
        self._is_pausing = False
        self._is_lost = False
        self.set_status("running")
        limit = self.body.get("max_iterations") or 500
        for _ in range(limit):
            async with self.step_lock:
                if self._is_lost or not await self._play_turn():
                    return
            # Calls that wait for the end of the step get their turn here.
            await asyncio.sleep(0)
        self.add_error("MaxIterationsReached", f"Agent reached maximum iterations limit ({limit}).")

    def pause(self) -> None:
        """Stop after the current step."""
        self.stops += 1
        if self.status == "running":
            self._is_pausing = True

    def interrupt(self) -> None:
        """Stop now; an open tool call ends in an error."""
        self.stops += 1
        was_running = self.status == "running"
        self._stop.set()
        if not was_running:
            self.set_status("paused")
            self.add("InterruptEvent", "user")

    def confirm(self, *, accept: bool, reason: str) -> bool:
        """Answer the pending actions; say whether the agent goes on."""
        pending, self._pending = self._pending, []
        if accept or not pending:
            self._pending = pending if accept else []
            return True
        self.set_status("idle")
        for action, call in pending:
            self._answer(action, call, "UserRejectObservation", rejection_reason=reason)
            self._messages.append({"role": "tool", "content": f"Action rejected: {reason}"})
        return False

    def lose_run(self) -> None:
        """Stop as in a crash; only the log will know of the error a restart makes of it."""
        if self.status != "running":
            return
        self.status = "error"
        self._is_lost = True
        self._stop.set()
        text = "A restart occurred while this tool was in progress."
        self.events.append(_event("AgentErrorEvent", "agent", error=text, tool_name="terminal"))

    def info(self) -> Json:
        """Return the record as `GET /api/conversations/{id}` shows it."""
        agent = self.body.get("agent") or _OTHER_AGENT
        return {
            "id": dashed(self.id),
            "workspace": self.body["workspace"],
            "execution_status": self.status,
            "title": self.title,
            "stats": self.stats(),
            "max_iterations": self.body.get("max_iterations") or 500,
            "confirmation_policy": self.policy,
            "agent": {**agent, "llm": {**(agent.get("llm") or {}), "api_key": None}},
            "tags": self.tags,
            "current_model_id": None,
            "parent_conversation_id": self.body.get("parent_conversation_id"),
            "sub_conversation_ids": [],
            "last_user_message_id": self._last_said,
            "created_at": self._created_at,
            "updated_at": _time() + "Z",
        }

    def stats(self) -> Json:
        """Return the costs as state events and the record carry them."""
        llm = (self.body.get("agent") or _OTHER_AGENT).get("llm") or {}
        usage = {
            "model": llm.get("model"),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        metrics = {
            "model_name": llm.get("model"),
            "accumulated_cost": self.cost,
            "max_budget_per_task": None,
            "accumulated_token_usage": usage,
        }
        return {"usage_to_metrics": {llm.get("usage_id") or "default": metrics}}

    # Events

    def add(self, kind: str, source: str, **members: Any) -> Json:
        """Write an event to the log and tell whoever listens."""
        event = _event(kind, source, **members)
        self.events.append(event)
        self._emit(event)
        return event

    def add_state(self, key: str, value: object) -> None:
        """Write that a part of the state changed."""
        self.add("ConversationStateUpdateEvent", "environment", key=key, value=value)

    def add_error(self, code: str, detail: str, kind: str = "agent_action") -> None:
        """End the run in an error."""
        self.set_status("error")
        classification = {"kind": kind, "retryable": False, "user_action": "none"}
        self.add(
            "ConversationErrorEvent",
            "environment",
            code=code,
            detail=detail,
            classification=classification,
        )
        self.tell_full_state()

    def set_status(self, status: str) -> None:
        """Change the execution status."""
        self.status = status
        self.add_state("execution_status", status)

    def tell_full_state(self) -> None:
        """Tell the whole state, which is not in the log and has no title."""
        value = self.info()
        for key in ("title", "created_at", "updated_at"):
            del value[key]
        value["agent"] = _shown(value["agent"])
        members = {"key": "full_state", "value": value}
        self._emit(_event("ConversationStateUpdateEvent", "environment", **members))

    # The run

    async def _play_turn(self) -> bool:
        """Play one turn of the script and say whether there is more to play."""
        if self._pending:
            pending, self._pending = self._pending, []
            return await self._act(pending, 0.0)
        user_text = next(m["content"] for m in reversed(self._messages) if m["role"] == "user")
        told = sum(one["role"] == "user" for one in self._messages)
        turn = Turn(
            step=self._step,
            user_text=user_text,
            messages=self._messages,
            tools={"finish": {}},
            request=self.body,
        )
        reply = self._playbook.reply(turn, is_first=told <= 1)
        if reply.status != 200:  # an HTTP status reads best as a number
            code, kind = _ERROR_CODES.get(reply.status, _OTHER_ERROR)
            self.add_error(code, f"The model answered {reply.status}", kind)
            return False
        self._step += 1
        self._charge(reply)
        if not reply.calls:
            await self._wait(reply.delay_seconds)
            message = {"role": "assistant", "content": [_text(reply.text)]}
            self.add("MessageEvent", "agent", llm_message=message, activated_skills=[])
            return self._end("finished")
        actions = [(self._add_action(reply, call), call) for call in reply.calls]
        if any(self._needs_answer(call) for call in reply.calls):
            self._pending = actions
            return self._end("waiting_for_confirmation")
        return await self._act(actions, reply.delay_seconds)

    async def _act(self, actions: Sequence[tuple[Json, ToolCall]], delay_seconds: float) -> bool:
        for action, call in actions:
            observation, seconds = self._use_tool(call.tool, call.arguments)
            await self._wait(delay_seconds + seconds)
            if self._is_lost:
                return False
            if self._stop.is_set():
                error = "Tool call interrupted before completion. The conversation was paused."
                self._answer(action, call, "AgentErrorEvent", error=error)
                self.set_status("paused")
                self.add("InterruptEvent", "user")
                self.tell_full_state()
                return False
            self._answer(action, call, "ObservationEvent", observation=observation)
            output = "".join(part["text"] for part in observation["content"])
            self._messages.append({"role": "tool", "content": output})
            if call.tool == "finish":
                return self._end("finished")
        if self._is_pausing:
            self.set_status("paused")
            self.add("PauseEvent", "user")
            return False
        return True

    async def _wait(self, seconds: float) -> None:
        if seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)

    def _end(self, status: str) -> bool:
        self.set_status(status)
        self.tell_full_state()
        return False

    def _charge(self, reply: Reply) -> None:
        llm = (self.body.get("agent") or {}).get("llm") or {}
        prompt = reply.prompt_tokens
        completion = reply.completion_tokens
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cost += prompt * (llm.get("input_cost_per_token") or 1e-5)
        self.cost += completion * (llm.get("output_cost_per_token") or 1e-4)
        self.add_state("stats", self.stats())

    def _needs_answer(self, call: ToolCall) -> bool:
        if call.tool in _HARMLESS or self.policy["kind"] == "NeverConfirm":
            return False
        return self.policy["kind"] == "AlwaysConfirm" or self._risk(call) in ("HIGH", "UNKNOWN")

    def _risk(self, call: ToolCall) -> str:
        if not self.body.get("security_analyzer"):
            return "UNKNOWN"
        return str(call.arguments.get("security_risk", "LOW"))

    def _add_action(self, reply: Reply, call: ToolCall) -> Json:
        call_id = f"call_{new_id()[:24]}"
        arguments = msgspec.json.encode(call.arguments).decode()
        return self.add(
            "ActionEvent",
            "agent",
            thought=[_text(reply.text)] if reply.text else [],
            action={**call.arguments, "kind": f"{_camel(call.tool)}Action"},
            tool_name=call.tool,
            tool_call_id=call_id,
            tool_call={"id": call_id, "name": call.tool, "arguments": arguments},
            llm_response_id=f"chatcmpl-{new_id()}",
            security_risk=self._risk(call),
            summary=f"Use {call.tool}",
        )

    def _answer(self, action: Json, call: ToolCall, kind: str, **members: Any) -> None:
        source = "agent" if kind == "AgentErrorEvent" else "environment"
        named = {"tool_name": call.tool, "tool_call_id": action["tool_call_id"]}
        if kind != "AgentErrorEvent":
            named["action_id"] = action["id"]
        self.add(kind, source, **named, **members)


def observe(tool: str, text: str, **members: Any) -> Json:
    """Return the observation of a tool."""
    content = [_text(text)]
    kind = f"{_camel(tool)}Observation"
    return {"content": content, "is_error": False, **members, "kind": kind}


def read_history(files: Mapping[str, bytes], conversation_id: str) -> list[Json]:
    """Return the events that were brought into a sandbox for a conversation."""
    packed = files.get(next((one for one in files if f"-history-{conversation_id}" in one), ""))
    if packed is None:
        return []
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
        members = sorted(tar.getmembers(), key=lambda one: one.name)
        found = [tar.extractfile(one) for one in members]
        return [msgspec.json.decode(file.read()) for file in found if file is not None]


def _event(kind: str, source: str, **members: Any) -> Json:
    head = {"id": dashed(new_id()), "timestamp": _time(), "source": source}
    return {**head, **members, "kind": kind}


def _text(text: str) -> Json:
    return {"cache_prompt": False, "type": "text", "text": text}


def _camel(tool: str) -> str:
    return "".join(part.capitalize() for part in tool.split("_"))


def _time() -> str:
    return now().replace(tzinfo=None).isoformat(timespec="microseconds")


def _shown(agent: Json) -> Json:
    """Return an agent as a state has it: real servers hide what they know to be secret, and no more."""
    servers = {
        name: {
            key: dict.fromkeys(part, MASK) if key in ("headers", "env") and part else part
            for key, part in server.items()
        }
        for name, server in (agent.get("mcp_config") or {}).items()
    }
    condenser = agent.get("condenser")
    if condenser:
        condenser = {**condenser, "llm": {**(condenser.get("llm") or {}), "api_key": MASK}}
    return {**agent, "mcp_config": servers, "condenser": condenser}
