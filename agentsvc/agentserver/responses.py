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
    exceeds_value_limit,
    without_secrets,
)

MAX_OUTPUT_CHARS: Final = 256 * 1024
"""The length to which each output stream of a command is truncated, at its beginning."""

MAX_MODEL_CHARS: Final = 255
"""Longer names of models are ignored."""

MAX_CONVERSATION_BYTES: Final = 16 * 1024 * 1024
"""The largest info of a conversation, which has some hundred bytes for each model call."""

_MAX_DETAIL_CHARS: Final = 1000


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a shell command; long outputs are truncated at the beginning."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False


class AgentTokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a usage id of a conversation has used so far."""

    prompt_tokens: int = 0
    """Tokens in requests to the model"""
    completion_tokens: int = 0
    """Tokens in responses of the model"""
    cache_read_tokens: int = 0
    """Tokens read from the provider's cache"""
    cache_write_tokens: int = 0
    """Tokens written to the provider's cache"""
    reasoning_tokens: int = 0
    """Tokens of the model's reasoning"""
    context_window: int = 0
    """Size of the model's context window in tokens; 0 if unknown"""
    per_turn_token: int = 0
    """Tokens of the last call"""


class AgentMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a usage id of a conversation so far."""

    model_name: str = ""
    """Model that was called"""
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
    """Return the sums over all usage ids; of context window and last call, the maximum."""
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
    """URL of the model's API; null: the default of its provider"""
    usage_id: str = ""
    """Purpose of the model, such as `agent`"""


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a conversation, without the settings that this server does not read."""

    kind: str = "Agent"
    """Kind of the agent"""
    llm: AgentModel = AgentModel()
    """Its language model"""


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """The working directory of a conversation inside its sandbox."""

    working_dir: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Directory of the project in the sandbox"""


_MANAGED_BY_ACP: Final = "acp-managed"


class ConversationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The info of an agent server about one of its conversations."""

    id: str
    """Id of the conversation, with or without dashes"""
    execution_status: str = "idle"
    """Status of the agent; `deleting` is ignored"""
    title: str | None = None
    """Title from the agent server; null: none yet, and the title here is kept"""
    workspace: Workspace = Workspace()
    """Working directory"""
    stats: ConversationStats | None = None
    """Costs so far; null: unknown"""
    max_iterations: int | None = None
    """Steps after which a run ends; null: unknown"""
    agent: AgentInfo = AgentInfo()
    """The agent"""
    tags: dict[str, str] = {}
    """Short texts by name"""
    current_model_id: str | None = None
    """Model in use, if it was switched; null: the model of the agent"""
    parent_conversation_id: str | None = None
    """Parent conversation; null: none"""
    sub_conversation_ids: list[str] | None = None
    """Child conversations; null: none"""
    last_user_message_id: str | None = None
    """Id of the event of the user's last message; null: none"""
    created_at: str = ""
    """Time of creation, by the clock of the sandbox"""
    updated_at: str = ""
    """Time of the last change, by the clock of the sandbox"""

    @property
    def hex_id(self) -> str:
        """Return the id as 32 hex digits; agent servers write it with dashes."""
        return self.id.replace("-", "")

    @property
    def model(self) -> str | None:
        """Return the name of the model, or None if an ACP agent chooses it, or if it is invalid."""
        model = self.agent.llm.model
        is_name = len(model) <= MAX_MODEL_CHARS and model.isprintable()
        return model if is_name and model != _MANAGED_BY_ACP else None


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of undecoded items."""

    items: list[msgspec.Raw]
    next_page_id: str | None = None


class BashOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of the output of a command; the last one has the exit code."""

    order: int = 0
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class BashPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of output chunks."""

    items: list[BashOutput]
    next_page_id: str | None = None


class StartedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command that was started."""

    id: str


class ToolServerTest(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the test of a tool server; `error` is why it did not list its tools."""

    ok: bool
    error: str = ""


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """The home directory inside the sandbox."""

    home: str


class InitState(StrEnum):
    """Whether a server of the warm pool was initialized for a user."""

    DORMANT = "dormant"
    INITIALIZING = "initializing"
    READY = "ready"


class Init(msgspec.Struct, frozen=True, kw_only=True):
    """The response with the init state."""

    state: InitState


class Skills(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of a project directory."""

    skills: list[dict[str, Any]]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of a project directory."""

    hook_config: dict[str, Any] | None = None


class GitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A changed file."""

    status: str
    """`ADDED`, `UPDATED`, `DELETED` or `MOVED`"""
    path: str
    """Path of the file, relative to the requested path"""


class GitDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The present and the former text of a file; both are None outside of a repository."""

    modified: str | None
    """Present text of the file; null if it is deleted, or there is no repository"""
    original: str | None
    """Former text of the file; null if it is new, or there is no repository"""


class _ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    detail: Any = None
    exception: str | None = None


def decode_conversation(raw: bytes) -> ConversationInfo:
    """Decode the body of a response with a conversation; raises AgentRefused if it is invalid."""
    if len(raw) > MAX_CONVERSATION_BYTES:
        raise AgentRefused("The agent server's info about the conversation is too large")
    return decode(ConversationInfo, raw)


class KeyRefused(AgentRefused):
    """The agent server does not accept the sandbox's key: it belongs to another sandbox."""


class ServerFault(AgentUnavailable):
    """The agent server answered 500: a temporary failure or an invalid request."""


class Output:
    """Collects the output chunks of a command, and truncates each stream at its beginning."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.last_order = -1
        self._kept = {"stdout": "", "stderr": ""}
        self._is_cut = False

    def add(self, parts: Sequence[BashOutput]) -> None:
        """Add the next chunks."""
        for part in parts:
            self.last_order = max(self.last_order, part.order)
            if part.exit_code is not None:
                self.exit_code = part.exit_code
        for name, kept in self._kept.items():
            text = "".join((kept, *(getattr(part, name) or "" for part in parts)))
            self._is_cut |= len(text) > MAX_OUTPUT_CHARS
            self._kept[name] = text[-MAX_OUTPUT_CHARS:]

    def result(self, *, timed_out: bool) -> CommandResult:
        """Return the result with the output so far; exit code -1 if there is none."""
        return CommandResult(
            exit_code=-1 if self.exit_code is None else self.exit_code,
            timed_out=timed_out,
            truncated=self._is_cut,
            **self._kept,
        )


def decode[T](kind: type[T], raw: bytes) -> T:
    """Decode the body of a response; raises AgentRefused if it is invalid."""
    if exceeds_value_limit(raw):
        raise AgentRefused("The response of the agent server has too many values")
    with _refusing_invalid():
        return decoder_of(kind).decode(raw)


def convert_answer[T](part: Any, kind: type[T]) -> T:
    """Convert a part of a decoded response; raises AgentRefused if it is invalid."""
    with _refusing_invalid():
        return msgspec.convert(part, kind)


@contextlib.contextmanager
def _refusing_invalid() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise AgentRefused("The agent server sent an invalid response", detail=str(exc)) from exc


def decode_events[T](decoder: msgspec.json.Decoder[T], raw: Iterable[bytes]) -> Iterator[T]:
    """Yield decoded events; skip those that do not decode, because they are of other kinds."""
    for one in raw:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield decoder.decode(one)


def to_error(status: int, body: bytes, where: str, hide: Sequence[Secret]) -> AgentsvcError:
    """Return the error for an error response."""
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
    """Return the error for an error response about git, without the server's text for clients.

    An invalid path or ref is a BadRequest.
    """
    reason = _explain(body, hide)
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return BadRequest(
            "git finds no such file or ref, or the file is too large to be shown",
            detail=f"{where}: {reason}",
        )
    return AgentRefused(f"Agent server error: {status}", detail=f"{where}: {reason}")


def _explain(body: bytes, hide: Sequence[Secret]) -> str:
    """Return the message of an error body, truncated to 1,000 characters, without the secrets."""
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
