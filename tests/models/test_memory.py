"""What is remembered of language models: who has answered whom, and what is said at a start."""

import asyncio

import msgspec
import pytest

from agentsvc.base.values import Secret
from agentsvc.conversations.model_health import ModelHealth
from agentsvc.domain.agent_options import Llm
from agentsvc.models.wire import upstream_of

MODEL = Llm(model="openai/small", base_url="http://127.0.0.1:1/v1", api_key=Secret("sk-one"))


def test_a_model_is_trusted_once_it_has_answered_with_the_same_key_and_user() -> None:
    memory = ModelHealth()
    assert not memory.is_trusted("ada", MODEL)
    memory.trust("ada", MODEL)
    assert memory.is_trusted("ada", MODEL)
    assert not memory.is_trusted("bob", MODEL)
    for change in ({"api_key": Secret("sk-two")}, {"model": "openai/big"}, {"base_url": None}):
        assert not memory.is_trusted("ada", msgspec.structs.replace(MODEL, **change))


@pytest.mark.parametrize("trouble", ["", "nobody is there"])
def test_one_that_refuses_or_cannot_be_asked_is_trusted_no_more(trouble: str) -> None:
    memory, upstream = ModelHealth(), upstream_of(MODEL)
    assert upstream is not None
    other = msgspec.structs.replace(MODEL, model="openai/other")
    for user, model in (("ada", MODEL), ("bob", MODEL), ("ada", other)):
        memory.trust(user, model)
    if trouble:
        memory.note_answer("c1", upstream, trouble)
    else:
        memory.note_refusal(upstream)
    assert not memory.is_trusted("ada", MODEL)
    assert not memory.is_trusted("bob", MODEL)
    assert memory.is_trusted("ada", other)


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    memory = ModelHealth()
    for number in range(1000):
        memory.trust(f"user {number}", MODEL)
    memory.trust("user 0", MODEL)
    memory.trust("one more", MODEL)
    kept = [memory.is_trusted(f"user {number}", MODEL) for number in range(3)]
    assert kept == [True, False, True]


async def test_who_watches_a_conversation_hears_its_model_and_no_other() -> None:
    memory, upstream = ModelHealth(), upstream_of(MODEL)
    other = upstream_of(msgspec.structs.replace(MODEL, model="openai/other"))
    assert upstream is not None
    assert other is not None
    with memory.watching("c1", MODEL) as watched:
        memory.note_answer("c2", upstream)
        memory.note_answer("c1", other, "nobody is there")
        await watched.wait(0.01)
        assert (watched.is_good, watched.trouble) == (False, "")
        async with asyncio.TaskGroup() as group:
            group.create_task(watched.wait(30))
            await asyncio.sleep(0)
            memory.note_answer("c1", upstream, "nobody is there")
        assert (watched.is_good, watched.trouble) == (False, "nobody is there")
        memory.note_answer("c1", upstream)
        await watched.wait(30)
        assert (watched.is_good, watched.trouble) == (True, "")
