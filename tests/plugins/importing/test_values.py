"""Events of the first generation in words of the second, and values that were encrypted."""

import base64
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.fernet import Fernet

from agentsvc.conversations.event_log import IMPORTED_KEY
from tests.http.v0.event_samples import translate
from tests.openhands_data import OLDER_ID, USES, every_event, sealed, write
from tests.plugin_loading import part

SecretOpener = part("importing.credentials").SecretOpener
Tree = part("importing.files").Tree
Unreadable = part("importing.model").Unreadable
Converter = part("importing.v0_events").Converter

FORGET_ALL = {"forgotten_events_start_id": 0, "forgotten_events_end_id": 10**9}

type Event = dict[str, Any]


def converted(events: list[Event]) -> list[Event]:
    converter = Converter(OLDER_ID, max_bytes=1_000_000)
    for event in events:
        converter.add(event["id"], event, msgspec.Raw(msgspec.json.encode(event)))
    return [msgspec.json.decode(body) for body in converter.bodies]


def twins(events: list[Event]) -> list[Event]:
    return [event for event in converted(events) if event.get("key") != IMPORTED_KEY]


def shown(events: list[Event]) -> list[Event]:
    bodies = [msgspec.json.encode(event) for event in converted(events)]
    listed: list[Event] = json.loads(msgspec.json.encode(translate(bodies)))
    return listed


def test_the_first_generation_is_told_each_event_as_it_was() -> None:
    assert shown(every_event()) == every_event()


def test_each_use_of_a_tool_has_one_answer() -> None:
    found = twins(every_event())
    asked = [event["tool_call_id"] for event in found if event["kind"] == "ActionEvent"]
    answered = Counter(
        event["tool_call_id"]
        for event in found
        if event["kind"] in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
    )
    assert len(set(asked)) == len(asked) == len(USES) + 1
    assert answered == Counter(asked[:-1])


def test_tools_are_those_that_there_are_now() -> None:
    found = twins(every_event())
    kinds = Counter(event["action"]["kind"] for event in found if event["kind"] == "ActionEvent")
    assert kinds == {
        "TerminalAction": 4,
        "FileEditorAction": 4,
        "ThinkAction": 1,
        "TaskTrackerAction": 2,
        "MCPToolAction": 6,
        "FinishAction": 1,
    }
    observed = [event for event in found if event["kind"] == "ObservationEvent"]
    assert {one["observation"]["kind"].removesuffix("Observation") for one in observed} == {
        "Terminal",
        "FileEditor",
        "Think",
        "TaskTracker",
        "MCPTool",
    }
    assert [one["observation"].get("exit_code") for one in observed[:2]] == [0, None]


def test_a_summary_stands_where_the_agent_sees_it() -> None:
    first, second = [event for event in twins(every_event()) if event["kind"] == "Condensation"]
    # Of the first three events that were not forgotten, the third is of no use here.
    assert (first["summary"], first["summary_offset"]) == ("short", 2)
    assert (second["summary"], second["summary_offset"]) == (None, None)
    assert (len(first["forgotten_event_ids"]), len(second["forgotten_event_ids"])) == (1, 2)


@pytest.mark.parametrize(
    "repeating",
    [
        {"observation": "run", "cause": 0, "content": ""},
        {"action": "condensation", "args": FORGET_ALL},
    ],
)
def test_small_events_that_repeat_large_ones_take_no_more_than_there_may_be(
    repeating: dict[str, Any],
) -> None:
    time = {"timestamp": "2026-01-01T00:00:00"}
    asked = {**time, "id": 0, "action": "run", "args": {"command": "x" * 10_000}}
    events = [asked, *({**time, **repeating, "id": number} for number in range(1, 300))]
    with pytest.raises(Unreadable, match="repeat"):
        converted(events)


def test_ids_are_the_same_each_time() -> None:
    first, second = converted(every_event()), converted(every_event())
    assert [event["id"] for event in first] == [event["id"] for event in second]
    assert len({event["id"] for event in first}) == len(first)


def test_numbers_that_are_missing_are_taken() -> None:
    events = [event for event in every_event() if event["id"] not in (0, 3, 4)]
    found = shown(events)
    assert [event["id"] for event in found] == list(range(len(every_event())))
    assert [event["action"] for event in found if event["id"] in (0, 3, 4)] == ["null"] * 3


@pytest.mark.parametrize("time", ["", "never", "0001-01-01T00:00:00", "x" * 1000])
def test_an_event_without_a_time_has_that_of_the_one_before_it(time: str) -> None:
    first, second = every_event()[:2]
    found = converted([first, {**second, "timestamp": time}])
    assert {event["timestamp"] for event in found} == {first["timestamp"]}
    alone = converted([{**first, "timestamp": time}])
    assert alone[0]["timestamp"] > "2026"


def test_an_event_that_only_claims_to_be_imported_is_not_told() -> None:
    def claimed(value: object) -> bytes:
        event = {"id": "a", "timestamp": "2026-01-01T00:00:00", "key": IMPORTED_KEY, "value": value}
        return msgspec.json.encode({**event, "kind": "ConversationStateUpdateEvent"})

    for value in (None, 7, {"event": 7}, {"event": {"id": 5, "timestamp": ""}}, {"twin": "a"}):
        assert translate([claimed(value)]) == []


def test_values_are_opened_with_any_key_there_is(tmp_path: Path) -> None:
    write(tmp_path / ".keys", [{"id": "a", "key": "first"}, {"id": "b", "key": "second"}])
    write(tmp_path / ".jwt_secret", "third\n")
    opener = SecretOpener.of(Tree(tmp_path))
    for secret in ("first", "second", "third"):
        assert opener.open(sealed("value", secret)) == "value"
    key = base64.urlsafe_b64encode(hashlib.sha256(b"third").digest())
    long = "v" * 100
    assert opener.open(Fernet(key).encrypt(long.encode()).decode()) == long
    assert opener.open("plain") == "plain"
    for closed in (sealed("value", "fourth"), Fernet(Fernet.generate_key()).encrypt(b"v").decode()):
        with pytest.raises(Unreadable, match="its key is missing"):
            opener.open(closed)
    with pytest.raises(Unreadable, match="masked"):
        opener.open("**********")


@pytest.mark.parametrize("keys", ["", "{", "[7]", '[{"id": "a"}]'])
def test_keys_that_are_broken_open_nothing(tmp_path: Path, keys: str) -> None:
    write(tmp_path / ".keys", keys)
    (tmp_path / ".jwt_secret").write_bytes(b"\xff")
    with pytest.raises(Unreadable):
        SecretOpener.of(Tree(tmp_path)).open(sealed("value", "first"))


@pytest.mark.parametrize(
    "head", [{"alg": "none", "enc": "A256GCM"}, {"alg": "dir"}, ["dir"], {"alg": "dir", "enc": "x"}]
)
def test_a_value_that_says_it_is_encrypted_otherwise_is_not_opened(
    tmp_path: Path, head: object
) -> None:
    write(tmp_path / ".jwt_secret", "first")
    whole = sealed("value", "first").partition(".")[2]
    begin = base64.urlsafe_b64encode(json.dumps(head).encode()).rstrip(b"=").decode()
    opener = SecretOpener.of(Tree(tmp_path))
    text = f"{begin}.{whole}"
    if begin.startswith("eyJ"):
        with pytest.raises(Unreadable):
            opener.open(text)
    else:
        assert opener.open(text) == text


def test_all_values_of_a_record_are_opened_and_what_is_closed_is_named() -> None:
    left_out: list[str] = []
    record = {"a": "plain", "b": {"c": "**********", "d": ["x", "********"]}, "e": 7}
    opened = SecretOpener(["first"]).open_all(record, left_out)
    assert opened == {"a": "plain", "b": {"d": ["x"]}, "e": 7}
    assert [note.split("`")[1] for note in left_out] == ["b.c", "b.d"]
