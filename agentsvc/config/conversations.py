"""Configuration of conversations, models and events. See `config.schema`."""

from typing import Annotated

from msgspec import Meta, Struct


class ConversationsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `conversations` section: time limits of starts, and synchronization of state."""

    start_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 900.0
    """Time limit for starting a conversation"""
    starts_at_once: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Maximum number of concurrent starts on the server's own machine; others wait for their turn, fairly
    between users; 0 derives it from the number of processors"""
    turn_seconds: Annotated[float, Meta(gt=0, le=10**6)] = 5.0
    """Longest time that one start keeps others waiting"""
    clone_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Time limit for cloning a repository"""
    setup_script_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """Time limit of .openhands/setup.sh"""
    agent_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """How long the agent server of a running sandbox may be unavailable"""
    first_answer_seconds: Annotated[float, Meta(ge=0)] = 2.0
    """How long a start waits to see whether the model rejects the first request"""
    hand_over_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """How long a request waits for the delivery of its message while the agent uses a tool"""
    keep_failed_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 3600.0
    """How long the sandbox of a failed start is kept for inspection"""
    title_tries: Annotated[int, Meta(ge=0, le=100)] = 4
    """How often the agent server is polled for a generated title"""
    title_wait_seconds: Annotated[float, Meta(gt=0)] = 3.0
    """Time between two polls for the title"""
    sync_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """Time between two fetches of events that were not delivered"""
    poll_seconds: Annotated[float, Meta(gt=0)] = 2.0
    """Time between two fetches of events from sandboxes that cannot deliver them"""
    silent_seconds: Annotated[float, Meta(gt=0)] = 15.0
    """How long the agent server of a running conversation may not respond before its state is unknown"""
    webhook_flush_seconds: Annotated[float, Meta(gt=0)] = 0.2
    """Longest time that the agent server may buffer events"""
    public_skills: bool = False
    """Load the public skills repository, which needs the internet"""


class ModelsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `models` section."""

    proxy: bool = True
    """Let sandboxes call models with an OpenAI-compatible API through this server, so that they need
    no key for them"""
    silence_seconds: Annotated[float, Meta(gt=0, le=10**6)] = 600.0
    """How long such a model may send no data"""


class EventsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `events` section."""

    store_deltas: bool = False
    """Store each delta of streamed answers, not only whole messages"""
    heartbeat_seconds: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Time between two heartbeats on an event stream without events"""
    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Age at which events of conversations whose sandbox is gone are deleted; 0 is never"""
