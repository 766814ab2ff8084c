"""Bodies that name a directory name the one where the sandbox has its projects."""

import asyncio
import gzip
import json

import pytest

from tests.http.gateway.steps import Box, Wire, head, session
from tests.noting_threads import NotingThreads

START = "/api/conversations"
GIVEN = b'{ "workspace": {"working_dir": "/workspace/project"}, "agent": {} }'
MOVED = b'{"workspace":{"working_dir":"/srv/work"},"agent":{}}'


@pytest.fixture
async def moved(box: Box) -> Box:
    return await Box.start(box.service, box.upstream, box.owner, spec="moved")


@pytest.mark.parametrize("at_root", [True, False])
async def test_the_usual_directory_is_the_sandboxes_own(moved: Box, *, at_root: bool) -> None:
    path = START if at_root else moved.path(START, "agent")
    answer = await moved.service.client_with(moved.key).post(path, json=json.loads(GIVEN))
    assert answer.status == 200
    seen = moved.upstream.seen[-1]
    assert (seen.body, seen.one("Content-Length")) == (MOVED, str(len(MOVED)))


async def test_a_client_that_waits_to_be_asked_is_asked(moved: Box) -> None:
    headers = {"X-Session-API-Key": moved.key}
    url = moved.url(START, "agent")
    async with (
        session() as client,
        client.post(url, data=GIVEN, headers=headers, expect100=True) as response,
    ):
        assert response.status == 200
    assert moved.upstream.seen[-1].body == MOVED


@pytest.mark.parametrize("tail", ["/api/conversations/1/events", "/api/file/upload"])
async def test_bodies_of_other_operations_pass_as_they_are(tail: str, moved: Box) -> None:
    assert (await moved.ask("POST", tail, "agent", data=GIVEN)).body == GIVEN


async def test_a_large_body_is_changed_while_others_have_their_turn(moved: Box) -> None:
    asyncio.get_running_loop().set_default_executor(threads := NotingThreads())
    for length, times in ((100_000, 0), (300_000, 1)):
        body = GIVEN[:-1] + b',"text":"' + b"x" * length + b'"}'
        seen = await moved.ask("POST", START, "agent", data=body)
        assert seen.body.startswith(MOVED[:-1])
        assert threads.count("relocate_body") == times


async def test_a_directory_that_is_there_stays(box: Box) -> None:
    assert (await box.ask("POST", START, "agent", data=GIVEN)).body == GIVEN


async def test_a_body_on_another_port_is_the_applications_own(moved: Box) -> None:
    assert (await moved.ask("POST", START, data=GIVEN)).body == GIVEN


async def test_a_compressed_body_is_not_looked_into(moved: Box) -> None:
    headers = {"Content-Encoding": "gzip"}
    packed = gzip.compress(GIVEN)
    assert (await moved.ask("POST", START, "agent", data=packed, headers=headers)).body == GIVEN


async def test_a_body_that_breaks_off_reaches_nobody(moved: Box) -> None:
    known = len(moved.upstream.seen)
    wire = await Wire.open(moved.service)
    lines = (f"X-Session-API-Key: {moved.key}", "Content-Length: 100")
    wire.send(head("POST", moved.path(START, "agent"), *lines) + b"some of it")
    await wire.close()
    assert (await moved.owner.get("/api/v1/sandboxes/search")).status == 200
    assert len(moved.upstream.seen) == known
