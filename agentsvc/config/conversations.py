"""Configuration of conversations, models and events. See `config.schema`."""

from typing import Annotated

from msgspec import Meta, Struct


class ConversationsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `conversations` section: time limits of the start and how state is kept up to date."""

    start_seconds: Annotated[
        float, Meta(gt=0, description="Longest time a conversation may take to start")
    ] = 900.0
    starts_at_once: Annotated[
        int,
        Meta(
            ge=0,
            le=10**6,
            description="How many starts work at a time on the server's own machine; others wait"
            " for their turn, fair between users; 0 is as its processors allow",
        ),
    ] = 0
    turn_seconds: Annotated[
        float,
        Meta(gt=0, le=10**6, description="How long one start keeps others waiting at the most"),
    ] = 5.0
    clone_seconds: Annotated[
        float, Meta(gt=0, description="Longest time cloning a repository may take")
    ] = 120.0
    setup_script_seconds: Annotated[
        float, Meta(gt=0, description="Longest time .openhands/setup.sh may take")
    ] = 600.0
    agent_seconds: Annotated[
        float,
        Meta(gt=0, description="Longest time the agent server of a running sandbox may not answer"),
    ] = 60.0
    first_answer_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a start watches whether the model refuses the first request",
        ),
    ] = 2.0
    hand_over_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a sent message is waited for while the agent uses a tool",
        ),
    ] = 10.0
    keep_failed_seconds: Annotated[
        float,
        Meta(ge=0, description="How long the sandbox of a failed start is kept to be looked at"),
    ] = 3600.0
    title_tries: Annotated[
        int,
        Meta(ge=0, le=100, description="How often the agent server is asked for a generated title"),
    ] = 4
    title_wait_seconds: Annotated[
        float, Meta(gt=0, description="Time between two questions for the title")
    ] = 3.0
    sync_seconds: Annotated[
        float, Meta(gt=0, description="Time between two fetches of events that were not delivered")
    ] = 30.0
    poll_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Time between two fetches of events from sandboxes that cannot deliver them",
        ),
    ] = 2.0
    silent_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How long the agent server of a run may give no answer before its state"
            " counts as unknown",
        ),
    ] = 15.0
    webhook_flush_seconds: Annotated[
        float, Meta(gt=0, description="Longest time the agent server may hold back events")
    ] = 0.2
    public_skills: Annotated[
        bool, Meta(description="Load the public skills repository, which needs the internet")
    ] = False


class ModelsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `models` section."""

    proxy: Annotated[
        bool,
        Meta(
            description="Let sandboxes ask models that speak as OpenAI's do through this server, so"
            " that they have no key of theirs"
        ),
    ] = True
    silence_seconds: Annotated[
        float, Meta(gt=0, le=10**6, description="How long such a model may send nothing")
    ] = 600.0


class EventsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `events` section."""

    store_deltas: Annotated[
        bool, Meta(description="Keep the single words of streamed answers, not only whole messages")
    ] = False
    heartbeat_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time between two signs of life on a stream of events where nothing happens",
        ),
    ] = 15.0
    delete_after_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=10**9,
            description="Age at which events of conversations whose sandbox is gone are deleted;"
            " 0 is never",
        ),
    ] = 0.0
