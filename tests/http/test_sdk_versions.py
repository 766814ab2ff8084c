"""Events in the form that a version of the SDK reads, by what the models of published versions have.

`tests/data/sdk/events.json` has the kinds of events and their fields, taken from the models of the
published versions, which forbid all others; `starts.jsonl` what these versions send to start a
conversation.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from agentsvc.http.sdk_versions import (
    EventReader,
    Version,
    mark,
    parse_version,
    reader_of,
    unmark,
    version_of_start,
)

type Kinds = dict[str, list[str]]

DATA = Path(__file__).parent.parent / "data"
KNOWN: dict[str, Kinds] = {
    version: group["kinds"]
    for group in json.loads((DATA / "sdk" / "events.json").read_text())
    for version in group["versions"]
}
STARTS: dict[str, bytes] = {
    one["version"]: json.dumps(one["body"]).encode()
    for one in map(json.loads, (DATA / "sdk" / "starts.jsonl").read_text().splitlines())
}
RECORDED = [
    line.encode()
    for file in sorted((DATA / "v0").glob("*.jsonl"))
    if not file.stem.startswith("older")
    for line in file.read_text().splitlines()
]


def version_of(text: str) -> Version:
    version = parse_version(text.rpartition(".")[0])
    assert version is not None
    return version


@pytest.mark.parametrize("name", KNOWN)
def test_a_version_gets_of_each_event_just_what_its_models_have(name: str) -> None:
    kinds, reader = KNOWN[name], EventReader(version_of(name))
    for body in RECORDED:
        event: dict[str, Any] = json.loads(body)
        read = reader.event(body)
        if event["kind"] not in kinds:
            assert read is None
            continue
        assert read is not None
        known = {key: value for key, value in event.items() if key in kinds[event["kind"]]}
        assert json.loads(read) == known


def test_the_recorded_events_have_all_that_older_versions_do_not_know() -> None:
    oldest, newest = KNOWN["1.21.0"], KNOWN["1.58.2"]
    told = [json.loads(body) for body in RECORDED]
    for kind in newest.keys() - oldest.keys():
        assert any(event["kind"] == kind for event in told), kind
    for field in ("parent_id", "extended_content", "classification"):
        assert any(field in event for event in told), field


def test_a_version_that_reads_everything_gets_the_bytes_as_they_are() -> None:
    for name in ("1.54.0", "1.58.2"):
        assert reader_of(version_of(name)) is None
    assert reader_of(None) is None
    assert all(EventReader((1, 54)).event(body) is body for body in RECORDED)


@pytest.mark.parametrize("name", STARTS)
def test_a_start_shows_which_version_wrote_it(name: str) -> None:
    version = version_of_start(STARTS[name])
    if version is None:
        # This one cannot be told from those that read everything.
        assert version_of(name) >= (1, 53)
        return
    assert version <= version_of(name)
    # Nothing is given that it could not read, and what is withheld is known to be missing somewhere.
    for body in RECORDED:
        read = EventReader(version).event(body)
        if read is not None:
            event = json.loads(read)
            assert set(event) <= set(KNOWN[name][event["kind"]])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"agent": {"llm": {"model": "x"}}}',
        b'{"agent": {"llm": {}, "system_prompt_filename": null}, "tool_module_qualnames": {}}',
        b'{"agent": [], "tool_module_qualnames": {}, "agent_definitions": []}',
    ],
)
def test_what_the_sdk_did_not_write_shows_no_version(body: bytes) -> None:
    assert version_of_start(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"3",
        b"{",
        b"\xff",
        b'{"items": 3}',
        b'{"items": {}, "next_page_id": null}',
        b'{"kind": 3, "parent_id": "x"}',
        b'{"parent_id": "x"}',
        b'"text"',
        b"[" * 100_000,
    ],
)
def test_what_is_no_event_is_left_as_it_is(body: bytes) -> None:
    assert EventReader((1, 21)).answer(body) == body


def test_a_page_keeps_all_but_what_is_not_known() -> None:
    items = [
        {"kind": "PauseEvent", "id": "a", "parent_id": "b"},
        {"kind": "SecurityAnalysisEvent", "id": "d"},
    ]
    page = {"items": items, "next_page_id": "c"}
    reader = EventReader((1, 30))
    shown = {"items": [{"kind": "PauseEvent", "id": "a"}], "next_page_id": "c"}
    assert json.loads(reader.answer(json.dumps(page).encode())) == shown
    listed = json.dumps([*items, None]).encode()
    assert json.loads(reader.answer(listed)) == [{"kind": "PauseEvent", "id": "a"}, None, None]


def test_what_has_more_in_it_than_any_answer_is_left_as_it_is() -> None:
    reader = EventReader((1, 21))
    event = b'{"kind":"PauseEvent","parent_id":null' + b',"n":0' * 400_000 + b"}"
    assert reader.event(event) == event
    tools = b'{"kind":"SystemPromptEvent","tools":[' + b'{"kind":"A"},' * 400_000 + b"{}]}"
    assert reader.event(tools) == tools
    tools = tools.replace(b'{"kind":"A"}', b"{}")
    assert reader.event(tools) == tools
    page = b'{"items":[' + b",".join([b'{"kind":"PauseEvent","parent_id":null}'] * 2000) + b"]}"
    assert reader.answer(page) == page
    long = b'{"items":[{"kind":"PauseEvent","parent_id":null,"t":"' + b"," * 2_000_000 + b'"}]}'
    assert reader.answer(long) == long


def test_an_event_with_a_large_table_in_it_is_put_into_the_form_of_the_version() -> None:
    event = {
        "kind": "MessageEvent",
        "parent_id": None,
        "text": "1,2,3\n" * 200_000,
        "n": [0] * 400_000,
    }
    read = EventReader((1, 21)).event(json.dumps(event).encode())
    assert read is not None
    del event["parent_id"]
    assert json.loads(read) == event


def test_versions_that_import_no_tools_are_told_only_of_those_that_all_programs_know() -> None:
    tools = [{"kind": "TerminalTool", "name": "t"}, {"kind": "BrowserClickTool", "name": "b"}]
    prompt = json.dumps({"kind": "SystemPromptEvent", "tools": tools}).encode()
    for version, known in (((1, 30), tools[:1]), ((1, 49), tools[:1]), ((1, 50), tools)):
        read = EventReader(version).event(prompt)
        assert read is not None
        assert json.loads(read) == {"kind": "SystemPromptEvent", "tools": known}
    for odd in (
        b'{"kind":"SystemPromptEvent","tools":3}',
        b'{"kind":"SystemPromptEvent","tools":[{"kind":3}]}',
    ):
        assert EventReader((1, 30)).event(odd) == odd


@pytest.mark.parametrize("version", [(1, 21), (1, 30), (2, 0), None])
def test_a_key_says_which_version_its_client_has(version: Version | None) -> None:
    assert unmark(mark("asvc_key", version)) == ("asvc_key", version)


@pytest.mark.parametrize(
    "key", ["asvc_key", "~sdk-1.2", "asvc_key~sdk-", "asvc_key~sdk-1", "k~sdk-1.2.3", "k~sdk-1.٣"]
)
def test_a_key_that_says_nothing_of_its_client_is_a_key(key: str) -> None:
    assert unmark(key) == (key, None)
