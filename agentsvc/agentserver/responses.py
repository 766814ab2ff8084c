"""Structs, decoders and errors for responses of agent servers. Pure."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec

from agentsvc.base import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    BadRequest,
    Conflict,
    NotFound,
    Secret,
    decoder_of,
    has_many_values,
    without_secrets,
)

MAX_OUTPUT_CHARS: Final = 256 * 1024
"""How much of each output stream of a command is kept: the last part."""

MAX_MODEL_CHARS: Final = 255
"""A name of a model that is longer is taken for none."""

MAX_CONVERSATION_BYTES: Final = 16 * 1024 * 1024
"""How much may be told of a conversation itself: it has some hundred bytes of each call of its model."""

_MAX_DETAIL_CHARS: Final = 1000


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a shell command did; both outputs keep their last part when they are too long."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False


class AgentTokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens one usage id of a conversation has used so far."""

    prompt_tokens: int = 0
    """Tokens the model has read"""
    completion_tokens: int = 0
    """Tokens the model has written"""
    cache_read_tokens: int = 0
    """Tokens read from the provider's cache"""
    cache_write_tokens: int = 0
    """Tokens written into the provider's cache"""
    reasoning_tokens: int = 0
    """Tokens of the model's thinking"""
    context_window: int = 0
    """Most tokens the model can read; 0 if that is not known"""
    per_turn_token: int = 0
    """Tokens of the last call"""


class AgentMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What one usage id of a conversation has cost so far."""

    model_name: str = ""
    """Model that was asked"""
    accumulated_cost: float = 0.0
    """US dollars so far"""
    accumulated_token_usage: AgentTokenUsage | None = None
    """Tokens so far; null before the first call"""


class ConversationStats(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a conversation by usage id (`agent`, `condenser`, …)."""

    usage_to_metrics: dict[str, AgentMetrics] = {}
    """Costs by usage id, such as `agent` or `condenser`"""

    @property
    def accumulated_cost(self) -> float:
        """Return the cost over all usage ids."""
        return sum(metrics.accumulated_cost for metrics in self.usage_to_metrics.values())


def tokens_of(metrics: Iterable[AgentMetrics]) -> AgentTokenUsage:
    """Return the tokens over all usage ids; window and last turn are the largest."""
    used = [one.accumulated_token_usage for one in metrics if one.accumulated_token_usage]
    return AgentTokenUsage(
        prompt_tokens=sum(one.prompt_tokens for one in used),
        completion_tokens=sum(one.completion_tokens for one in used),
        cache_read_tokens=sum(one.cache_read_tokens for one in used),
        cache_write_tokens=sum(one.cache_write_tokens for one in used),
        reasoning_tokens=sum(one.reasoning_tokens for one in used),
        context_window=max((one.context_window for one in used), default=0),
        per_turn_token=max((one.per_turn_token for one in used), default=0),
    )


class AgentModel(msgspec.Struct, frozen=True, kw_only=True):
    """The language model of an agent."""

    model: str = ""
    """Provider and name of the model"""
    base_url: str | None = None
    """URL of the model's API; null: the usual one of its provider"""
    usage_id: str = ""
    """What the model is used for"""


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a conversation, as far as the control plane looks at it."""

    kind: str = "Agent"
    """Kind of the agent"""
    llm: AgentModel = AgentModel()
    """Its language model"""


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation works inside its sandbox."""

    working_dir: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Directory of the project in the sandbox"""


_OF_ANOTHER_AGENT: Final = "acp-managed"


class ConversationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent server says about one of its conversations."""

    id: str
    """Id of the conversation, with or without dashes"""
    execution_status: str = "idle"
    """What the agent does; `deleting` is not noted"""
    title: str | None = None
    """Title the agent server has made; null: none yet, and the one here stays"""
    workspace: Workspace = Workspace()
    """Where the conversation works"""
    stats: ConversationStats | None = None
    """What it has cost so far; null: not known"""
    max_iterations: int | None = None
    """Steps after which a run ends; null: not said"""
    agent: AgentInfo = AgentInfo()
    """The agent"""
    tags: dict[str, str] = {}
    """Short texts by name"""
    current_model_id: str | None = None
    """Model in use, where it was switched; null: that of the agent"""
    parent_conversation_id: str | None = None
    """Conversation it is a part of; null: none"""
    sub_conversation_ids: list[str] | None = None
    """Conversations that are parts of it; null: none"""
    last_user_message_id: str | None = None
    """Event of the user's last message; null: none"""
    created_at: str = ""
    """When it was created, by the clock of the sandbox"""
    updated_at: str = ""
    """When it last changed, by the clock of the sandbox"""

    @property
    def hex_id(self) -> str:
        """Return the id as 32 hex digits; agent servers write it with dashes."""
        return self.id.replace("-", "")

    @property
    def model(self) -> str | None:
        """Return the model, None where that is the matter of another agent, or not a name."""
        model = self.agent.llm.model
        is_name = len(model) <= MAX_MODEL_CHARS and model.isprintable()
        return model if is_name and model != _OF_ANOTHER_AGENT else None


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of anything: its items as they came."""

    items: list[msgspec.Raw]
    next_page_id: str | None = None


class BashOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the output of a command; the last one has the exit code."""

    order: int = 0
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class BashPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of output parts."""

    items: list[BashOutput]
    next_page_id: str | None = None


class StartedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command that was started."""

    id: str


class ToolServerTest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a tool server could be reached and listed its tools; `error` says why not."""

    ok: bool
    error: str = ""


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """The home directory inside the sandbox."""

    home: str


class InitState(StrEnum):
    """Whether a server knows for whom it is."""

    DORMANT = "dormant"
    INITIALIZING = "initializing"
    READY = "ready"


class Init(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of that."""

    state: InitState


class Skills(msgspec.Struct, frozen=True, kw_only=True):
    """The skills a project directory brings."""

    skills: list[dict[str, Any]]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks a project directory brings."""

    hook_config: dict[str, Any] | None = None


class GitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs from what it is compared with; the path is relative to what was asked.

    The status is `ADDED`, `UPDATED`, `DELETED` or `MOVED`.
    """

    status: str
    """`ADDED`, `UPDATED`, `DELETED` or `MOVED`"""
    path: str
    """The file, relative to the path that was asked for"""


class GitDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is and as it was; both are None outside of a repository."""

    modified: str | None
    """Text of the file as it is; null if it is deleted, or there is no repository"""
    original: str | None
    """Text of the file as it was; null if it is new, or there is no repository"""


class _ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    detail: Any = None
    exception: str | None = None


def decode_conversation(raw: bytes) -> ConversationInfo:
    """Return the conversation in the body of an answer; raises AgentRefused if it is not one."""
    if len(raw) > MAX_CONVERSATION_BYTES:
        raise AgentRefused("What the agent server says of a conversation is too large")
    return decode(ConversationInfo, raw)


class KeyRefused(AgentRefused):
    """The agent server does not take the key of its sandbox: it is another one."""


class ServerFault(AgentUnavailable):
    """The agent server answered 500: perhaps a moment's trouble, perhaps ours to mend."""


class Output:
    """Gathers the parts of a command's output, keeping the last of each stream."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.last_order = -1
        self._kept = {"stdout": "", "stderr": ""}
        self._is_cut = False

    def add(self, parts: Sequence[BashOutput]) -> None:
        """Take the next parts."""
        for part in parts:
            self.last_order = max(self.last_order, part.order)
            if part.exit_code is not None:
                self.exit_code = part.exit_code
        for name, kept in self._kept.items():
            text = "".join((kept, *(getattr(part, name) or "" for part in parts)))
            self._is_cut |= len(text) > MAX_OUTPUT_CHARS
            self._kept[name] = text[-MAX_OUTPUT_CHARS:]

    def result(self, *, timed_out: bool) -> CommandResult:
        """Return what there is."""
        return CommandResult(
            exit_code=-1 if self.exit_code is None else self.exit_code,
            timed_out=timed_out,
            truncated=self._is_cut,
            **self._kept,
        )


def decode[T](kind: type[T], raw: bytes) -> T:
    """Return the decoded body of an answer; raises AgentRefused if it does not fit."""
    if has_many_values(raw):
        raise AgentRefused("The answer of the agent server has more values than this server reads")
    with _fitting():
        return decoder_of(kind).decode(raw)


def convert_answer[T](part: Any, kind: type[T]) -> T:
    """Return a part of a decoded answer as what it is; raises AgentRefused if it does not fit."""
    with _fitting():
        return msgspec.convert(part, kind)


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise AgentRefused(
            "The agent server answered in a form this server does not know", detail=str(exc)
        ) from exc


def decode_events[T](decoder: msgspec.json.Decoder[T], raw: Iterable[bytes]) -> Iterator[T]:
    """Yield events; what has another form is none of those that are looked for."""
    for one in raw:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield decoder.decode(one)


def to_error(status: int, body: bytes, where: str, hide: Sequence[Secret]) -> AgentsvcError:
    """Return the error that an answer with this status and body means."""
    reason = _explain(body, hide)
    detail = f"{where}: {status}"
    if status == HTTPStatus.NOT_FOUND:
        return NotFound(reason or "Not Found", detail=detail)
    if status == HTTPStatus.CONFLICT:
        return Conflict(reason or "The conversation is running", detail=detail)
    if status == HTTPStatus.UNAUTHORIZED:
        return KeyRefused(
            "The agent server does not accept the key of this sandbox: another server answers "
            "at its address",
            detail=detail,
        )
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerFault(f"The agent server failed: {reason or status}", detail=detail)
    if status > HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return AgentUnavailable(
            f"The agent server cannot do this now: {reason or status}", detail=detail
        )
    return AgentRefused(f"The agent server refused: {reason or status}", detail=detail)


def to_git_error(status: int, body: bytes, where: str, hide: Sequence[Secret]) -> AgentsvcError:
    """Return the error for an answer about git, which tells clients no more than its kind.

    What the server finds wrong with a path or a ref is a BadRequest.
    """
    reason = _explain(body, hide)
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return BadRequest(
            "git finds no such file or ref, or the file is too large to be shown",
            detail=f"{where}: {reason}",
        )
    return AgentRefused(f"Agent server error: {status}", detail=f"{where}: {reason}")


def _explain(body: bytes, hide: Sequence[Secret]) -> str:
    """Return what an error body says, in at most 1,000 characters and without the secrets."""
    try:
        trouble = decode(_ErrorBody, body)
        text = trouble.exception or _describe(trouble.detail)
    except AgentRefused:
        text = body[: 4 * _MAX_DETAIL_CHARS].decode(errors="replace").strip()
    text = without_secrets(text, hide)
    return text if len(text) <= _MAX_DETAIL_CHARS else text[:_MAX_DETAIL_CHARS] + "…"


def _describe(detail: object) -> str:
    if isinstance(detail, str):
        return detail
    if isinstance(detail, list):
        return "; ".join(_describe_item(item) for item in detail[:5])
    return ""


def _describe_item(item: object) -> str:
    if not isinstance(item, dict):
        return str(item)
    loc = item.get("loc")
    place = ".".join(str(part) for part in loc) if isinstance(loc, list) else ""
    return f"{place}: {item.get('msg', '')}"
