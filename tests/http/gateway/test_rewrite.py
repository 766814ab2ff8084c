"""Requests of published clients, made ones for the agent servers of today."""

import pytest

from agentsvc.http.gateway.rewriting import relocate_body, to_agent

ELSEWHERE = "/srv/sandboxes/7/workspace"
IN_CONTAINER = "/workspace/project"


@pytest.mark.parametrize(
    ("path", "query", "asked"),
    [
        ("/api/git/changes/%2Fworkspace%2Fproject", "", "/api/git/changes?path={root}"),
        ("/api/git/diff/%2Fworkspace%2Fproject%2Fa%20b", "", "/api/git/diff?path={root}/a%20b"),
        ("/api/git/changes", "path=%2Fworkspace%2Fproject", "/api/git/changes?path={root}"),
        (
            "/api/git/changes",
            "path=/workspace/project/repo&ref=HEAD",
            "/api/git/changes?ref=HEAD&path={root}/repo",
        ),
        ("/api/file/upload/%2Fworkspace%2Fnote.txt", "", "/api/file/upload?path={root}/note.txt"),
        ("/api/file/download", "path=/workspace", "/api/file/download?path={root}"),
    ],
)
def test_the_usual_root_stands_for_where_the_projects_are(
    path: str, query: str, asked: str
) -> None:
    found = to_agent(path, query, editor_url=None, working_dir=ELSEWHERE)
    assert "?".join(found) == asked.format(root=ELSEWHERE)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/api/file/download", "path=/workspaces/a"),
        ("/api/file/download", "path=/etc/hosts"),
        ("/api/file/download", "path=/workspace/a&path=/workspace/b"),
        ("/api/file/home", ""),
        ("/api/conversations", "path=/workspace/a"),
    ],
)
def test_every_other_path_stays_as_it_was_written(path: str, query: str) -> None:
    found = to_agent(path, query, editor_url=None, working_dir=ELSEWHERE)
    assert found == (path, query)


@pytest.mark.parametrize("working_dir", [IN_CONTAINER, "/workspace", ""])
def test_nothing_is_moved_where_the_usual_root_is_there(working_dir: str) -> None:
    given = ("/api/file/download", "path=/workspace/project/a%20b")
    assert to_agent(*given, editor_url=None, working_dir=working_dir) == given


START = "/api/conversations"
COMMAND = "/api/bash/start_bash_command"


@pytest.mark.parametrize(
    ("path", "body", "sent"),
    [
        (
            START,
            '{"workspace": {"working_dir": "/workspace/project", "kind": "x"}, "big": 1e400}',
            '{"workspace":{"working_dir":"{root}","kind":"x"},"big":1e400}',
        ),
        (
            COMMAND,
            '{"command": "ls", "cwd": "/workspace/a b"}',
            '{"command":"ls","cwd":"{root}/a b"}',
        ),
        (
            START,
            '{"table":"' + "1,2," * 200_000 + '","workspace":{"working_dir":"/workspace"}}',
            '{"table":"' + "1,2," * 200_000 + '","workspace":{"working_dir":"{root}"}}',
        ),
    ],
)
def test_the_directory_that_a_body_names_is_where_the_projects_are(
    path: str, body: str, sent: str
) -> None:
    found = relocate_body(path, body.encode(), ELSEWHERE)
    assert found.decode() == sent.replace("{root}", ELSEWHERE)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (START, b'{ "workspace": {"working_dir": "project"} }'),
        (START, b'{ "workspace": {"working_dir": null} }'),
        (START, b'{ "workspace": "/workspace" }'),
        (START, b'{ "agent": {} }'),
        (START, b"[]"),
        (START, b"no JSON"),
        (START, b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        (
            START,
            b"{ " + b'"n": 0, ' * 400_000 + b'"workspace": {"working_dir": "/workspace"}}',
        ),
        (START, b'{ "workspace": {"working_dir": "/workspace\xff"} }'),
        (COMMAND, b'{ "command": "ls /workspace", "cwd": "/srv" }'),
        (COMMAND, b""),
    ],
)
def test_every_other_body_stays_as_it_was_written(path: str, body: bytes) -> None:
    assert relocate_body(path, body, ELSEWHERE) == body
