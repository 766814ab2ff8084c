"""Data of another server that is broken, or made to harm, is left out and told; the rest comes."""

import json
import os
import sqlite3
from pathlib import Path

import pytest

from tests.openhands_data import NEWER_ID, OLDER_ID, lay_newer, lay_older, recorded, write
from tests.plugin_loading import part
from tests.plugins.importing.test_importing import NEWER, Ours

Tree = part("importing.files").Tree
Unreadable = part("importing.model").Unreadable
v1_users = part("importing.v1").v1_users

MESSAGE = recorded("older-run-finish")[2]
DEEP = "[" * 100_000


@pytest.fixture
def ours(tmp_path: Path) -> Ours:
    made = Ours(tmp_path)
    made.call("keys", "create", "--user", "admin", "--role", "admin")
    return made


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        DEEP,
        '{"id": 1}',
        '{"id": true, "timestamp": "2026-01-01T00:00:00", "action": "message"}',
        '{"id": 2, "timestamp": "2026-01-01T00:00:00", "action": "message"}',
        '{"id": 1, "action": "message"}',
        '{"id": 1, "timestamp": "2026-01-01T00:00:00", "observation": 7, "action": "x"}',
        '{"id": 1, "timestamp": "2026-01-01T00:00:00", "action": "x", "extras": []}',
        "\udcff",
    ],
)
def test_an_event_that_is_broken_leaves_its_number_to_one_that_says_nothing(
    ours: Ours, content: str
) -> None:
    directory = lay_older(ours.path, events=[{**MESSAGE, "id": number} for number in (0, 2)])
    (directory / "events" / "1.json").write_bytes(content.encode(errors="surrogateescape"))
    item = ours.take()[OLDER_ID]
    assert (item["outcome"], item["events"]) == ("imported", 2)
    assert item["notes"][0].startswith("1 events are left out: events/1.json ")
    shown = ours.call("import", "openhands", str(ours.path))
    assert "1 are here already" in shown


@pytest.mark.parametrize(
    "content", ["", "[]", DEEP, '{"title": 7, "pr_number": "x", "trigger": "me"}']
)
def test_a_record_that_is_broken_does_not_cost_the_events(ours: Ours, content: str) -> None:
    directory = lay_older(ours.path)
    (directory / "metadata.json").write_text(content)
    item = ours.take()[OLDER_ID]
    assert (item["outcome"], item["events"]) == ("imported", 11)
    assert item["notes"]


def test_a_number_with_hundreds_of_digits_is_left_out(ours: Ours) -> None:
    directory = lay_older(ours.path)
    (directory / "metadata.json").write_text(f'{{"accumulated_cost": 1{"0" * 400}}}')
    item = ours.take()[OLDER_ID]
    assert (item["outcome"], item["notes"]) == ("imported", ["`accumulated_cost` is left out"])


def test_what_is_nested_as_deeply_as_can_be_read_costs_its_event_alone(ours: Ours) -> None:
    older, newer = lay_older(ours.path, events=[MESSAGE | {"id": 0}]), lay_newer(ours.path)
    body = '{"id": %s, "kind": "X", "timestamp": "2026-01-01T00:00:00", "action": "x", "args": %s}'
    # Where the end is depends on what is called before.
    for number, depth in enumerate(range(1300, 1700), 1):
        nested = f'{{"a": {"[" * depth}{"]" * depth}}}'
        write(older / "events" / f"{number}.json", body % (number, nested))
        write(newer / f"deep{number}", body % (f'"{number}"', nested))
    report = ours.take()
    assert {item["outcome"] for item in report.values()} == {"imported"}


def test_values_that_no_conversation_can_have_are_left_out(ours: Ours) -> None:
    lay_older(
        ours.path,
        title="a\x00b\n" + "c" * 100_000,
        selected_repository="--upload-pack=evil",
        git_provider="elsewhere",
        created_at="0001-01-01T00:00:00",
        last_updated_at="never",
        accumulated_cost=-1,
        prompt_tokens=10**30,
        pr_number=[10**30],
    )
    item = ours.take()[OLDER_ID]
    assert item["outcome"] == "imported"
    assert {note.split("`")[1] for note in item["notes"]} == {
        "selected_repository",
        "git_provider",
        "created_at",
        "last_updated_at",
        "accumulated_cost",
        "prompt_tokens",
        "pr_number",
    }


@pytest.mark.parametrize("depth", [1200, 100_000])
def test_settings_and_secrets_that_are_nested_deeply_do_not_cost_the_conversations(
    ours: Ours, depth: int
) -> None:
    lay_older(ours.path)
    nested = f"{'[' * depth}{']' * depth}"
    (ours.path / "settings.json").write_text(f'{{"x": {nested}}}')
    (ours.path / "secrets.json").write_text(f'{{"custom_secrets": {{"x": {nested}}}}}')
    report = ours.take(code=1)
    for name in ("settings.json", "secrets.json"):
        assert (report[name]["outcome"], len(report[name]["notes"])) == ("skipped", 1)
    assert report[OLDER_ID]["outcome"] == "imported"


def test_settings_and_secrets_that_are_not_taken_do_not_cost_the_conversations(ours: Ours) -> None:
    lay_older(ours.path)
    llm = {"model": "openai/a", "litellm_extra_body": {"a": "x" * 1_100_000}}
    write(ours.path / "settings.json", {"agent_settings": {"llm": llm}})
    secrets = {"STARS": {"secret": "**********"}, "KEY": {"secret": "value"}}
    write(ours.path / "secrets.json", {"custom_secrets": secrets})
    report = ours.take(code=1)
    outcomes = [report[name]["outcome"] for name in ("settings.json", "STARS", "KEY", OLDER_ID)]
    assert outcomes == ["skipped", "skipped", "imported", "imported"]


def test_links_and_special_files_are_not_followed(ours: Ours, tmp_path: Path) -> None:
    outside = lay_older(tmp_path / "outside")
    sessions = ours.path / "sessions"
    sessions.mkdir()
    (sessions / ("a" * 32)).symlink_to(outside)
    linked = sessions / ("b" * 32)
    linked.mkdir()
    (linked / "events").symlink_to(outside / "events")
    (linked / "metadata.json").symlink_to(outside / "metadata.json")
    single = sessions / ("c" * 32) / "events"
    single.mkdir(parents=True)
    (single / "0.json").symlink_to(outside / "events" / "0.json")
    os.mkfifo(single / "1.json")
    (ours.path / "settings.json").symlink_to(outside / "metadata.json")
    os.mkfifo(ours.path / "secrets.json")
    os.mkfifo(ours.path / ".keys")
    report = ours.take(code=1)
    assert {item["outcome"] for item in report.values()} == {"skipped"}
    assert "a" * 32 not in report
    assert report["b" * 32]["notes"] == ["cannot be read: Not a directory"]
    assert report["c" * 32]["notes"] == ["there is no metadata.json", "has no events"]
    assert report["settings.json"]["notes"] == ["is a link or not a regular file"]


def test_a_file_that_becomes_a_link_after_it_was_listed_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    tree = Tree(tmp_path / "in")
    assert tree.entries() == []
    for path in ("file", "up/secret", "../secret", "in/../../secret", "nothing", "up"):
        with pytest.raises(Unreadable):
            tree.read(path, max_bytes=100)
    assert tree.entries("nothing") == []
    with pytest.raises(Unreadable):
        tree.entries("file")
    os.mkfifo(tmp_path / "in" / "pipe")
    with pytest.raises(Unreadable, match="regular"):
        tree.read("pipe", max_bytes=100)


def test_a_file_that_is_larger_than_it_said_is_not_read(tmp_path: Path) -> None:
    # What the kernel makes up says that it has no size.
    assert Path("/proc/self/status").stat().st_size == 0
    with pytest.raises(Unreadable, match="larger than 10 bytes"):
        Tree(Path("/proc/self")).read("status", max_bytes=10)
    (tmp_path / "large").write_bytes(b"a" * 11)
    for path, root in (("large", tmp_path), ("status", Path("/proc/self"))):
        with pytest.raises(Unreadable, match="larger"):
            Tree(root).copy(path, tmp_path / f"copy of {path}", max_bytes=10)


def test_numbers_far_behind_the_others_and_strange_names_are_left_out(ours: Ours) -> None:
    directory = lay_older(ours.path, events=[MESSAGE | {"id": 0}])
    write(directory / "events" / "999999999.json", MESSAGE | {"id": 999999999})
    write(directory / "events" / "01.json", MESSAGE | {"id": 1})
    write(directory / "events" / "x.json", MESSAGE)
    (ours.path / "sessions" / "a b").mkdir()
    report = ours.take(code=1)
    assert report[OLDER_ID]["events"] == 1
    assert report["a b"]["notes"] == ["is not a valid id of a conversation"]


def test_a_conversation_without_events_is_skipped(ours: Ours) -> None:
    lay_older(ours.path, events=[])
    lay_newer(ours.path, events=[])
    report = ours.take(code=1)
    assert report[OLDER_ID]["notes"] == ["has no events"]
    assert report[NEWER]["notes"] == ["its events are not there", "has no events"]


def test_events_of_the_second_generation_are_sorted_and_broken_ones_left_out(ours: Ours) -> None:
    events = recorded("run-finish")
    directory = lay_newer(
        ours.path, events=[{**one, "id": f"e{n}"} for n, one in enumerate(events)]
    )
    for name, content in {
        "z1": DEEP,
        "z2": "{}",
        "z3": json.dumps({**events[0], "timestamp": ""}),
    }.items():
        (directory / name).write_text(content)
    (directory / "z4").mkdir()
    (directory / "copy").write_text(json.dumps({**events[0], "id": "e0"}))
    item = ours.take()[NEWER]
    assert (item["outcome"], item["events"]) == ("imported", 12)
    assert item["notes"] == [
        "3 events are left out: z1 is not an event, z2 is not an event, z3 has no time",
        "1 events are left out: no events, or there twice",
    ]


def test_events_that_the_database_does_not_know_come_without_it(ours: Ours) -> None:
    lay_newer(ours.path)
    (ours.path / "openhands.db").unlink()
    assert ours.take()[NEWER]["notes"] == ["openhands.db does not know it"]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_database_that_is_broken_is_told_and_the_events_come(ours: Ours, content: bytes) -> None:
    lay_newer(ours.path)
    (ours.path / "openhands.db").write_bytes(content)
    report = ours.take(code=1 if content else 0)
    assert report[NEWER]["outcome"] == "imported"
    assert ("openhands.db" in report) == bool(content)


def test_a_database_that_runs_what_it_holds_is_not_run(ours: Ours) -> None:
    connection = sqlite3.connect(ours.path / "openhands.db")
    connection.execute(
        "CREATE VIEW conversation_metadata AS WITH RECURSIVE n(i) AS"
        " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS conversation_id FROM n"
    )
    connection.commit()
    connection.close()
    assert ours.take() == {}


def test_a_conversation_whose_name_is_taken_here_is_told(ours: Ours) -> None:
    lay_older(ours.path, "mine")
    assert ours.take()["mine"]["outcome"] == "imported"
    database = sqlite3.connect(ours.data / "agentsvc.db")
    database.execute("PRAGMA foreign_keys = OFF")
    database.execute("UPDATE conversations SET id = ?", ("f" * 32,))
    database.commit()
    database.close()
    assert ours.take(code=1)["mine"]["notes"] == ["has the name of another one here"]


def test_an_installation_with_several_administrators_wants_a_name(ours: Ours) -> None:
    ours.call("users", "create", "eve", "--role", "admin")
    shown = ours.call("import", "openhands", str(ours.path), code=1)
    assert "there are 2 administrators" in shown
    assert "--user NAME" in shown
    assert "there is no user `bob`" in ours.call(
        "import", "openhands", str(ours.path), "--user", "bob", code=1
    )


def test_a_path_that_is_no_directory_is_wrong_usage(ours: Ours) -> None:
    assert "does not exist" in ours.call("import", "openhands", "/nowhere/at/all", code=2)


def test_a_place_that_cannot_be_listed_is_told_in_one_line(ours: Ours) -> None:
    (ours.path / "users").touch()
    for path in (ours.path, Path("/dev/null")):
        told = ours.call("import", "openhands", str(path), code=1)
        why = "cannot be read: Not a directory"
        assert told == f"error: {path}, or a directory in it, {why}\n"


def test_a_full_disk_is_no_fault_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 10)
    with pytest.raises(OSError, match="No space left"):
        Tree(tmp_path).copy("file", Path("/dev/full"), max_bytes=100)


def test_a_directory_that_cannot_be_listed_is_no_users(tmp_path: Path) -> None:
    class Locked:
        """Has a directory of another user, which root would be let into."""

        def entries(self, path: str = "") -> list[object]:
            if path == "cache":
                raise Unreadable("cannot be read: Permission denied")
            return list(Tree(tmp_path).entries(path))

    (tmp_path / "cache").mkdir()
    (tmp_path / "ann/v1_conversations").mkdir(parents=True)
    assert v1_users(Locked()) == ["ann"]


def test_ids_stay_what_they_are(ours: Ours) -> None:
    lay_newer(ours.path, NEWER_ID.upper())
    assert ours.take()[NEWER]["outcome"] == "imported"
