"""Configuration of conversations, models and events. See `config.schema`."""

from typing import Annotated

from msgspec import Meta, Struct


class ConversationsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `conversations` section: time limits of the start and how state is kept up to date."""

    start_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 900.0
    """Longest time a conversation may take to start"""
    starts_at_once: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """How many starts work at a time on the server's own machine; others wait for their turn, fair
    between users; 0 is as its processors allow"""
    turn_seconds: Annotated[float, Meta(gt=0, le=10**6)] = 5.0
    """How long one start keeps others waiting at the most"""
    clone_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Longest time cloning a repository may take"""
    setup_script_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """Longest time .openhands/setup.sh may take"""
    agent_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """Longest time the agent server of a running sandbox may not answer"""
    first_answer_seconds: Annotated[float, Meta(ge=0)] = 2.0
    """How long a start watches whether the model refuses the first request"""
    hand_over_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """How long a sent message is waited for while the agent uses a tool"""
    keep_failed_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 3600.0
    """How long the sandbox of a failed start is kept to be looked at"""
    title_tries: Annotated[int, Meta(ge=0, le=100)] = 4
    """How often the agent server is asked for a generated title"""
    title_wait_seconds: Annotated[float, Meta(gt=0)] = 3.0
    """Time between two questions for the title"""
    sync_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """Time between two fetches of events that were not delivered"""
    poll_seconds: Annotated[float, Meta(gt=0)] = 2.0
    """Time between two fetches of events from sandboxes that cannot deliver them"""
    silent_seconds: Annotated[float, Meta(gt=0)] = 15.0
    """How long the agent server of a run may give no answer before its state counts as unknown"""
    webhook_flush_seconds: Annotated[float, Meta(gt=0)] = 0.2
    """Longest time the agent server may hold back events"""
    public_skills: bool = False
    """Load the public skills repository, which needs the internet"""


class ModelsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `models` section."""

    proxy: bool = True
    """Let sandboxes ask models that speak as OpenAI's do through this server, so that they have no
    key of theirs"""
    silence_seconds: Annotated[float, Meta(gt=0, le=10**6)] = 600.0
    """How long such a model may send nothing"""


class EventsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `events` section."""

    store_deltas: bool = False
    """Keep the single words of streamed answers, not only whole messages"""
    heartbeat_seconds: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Time between two signs of life on a stream of events where nothing happens"""
    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Age at which events of conversations whose sandbox is gone are deleted; 0 is never"""
