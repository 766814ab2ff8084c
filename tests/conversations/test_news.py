"""What a user's conversations, start tasks and sandboxes announce as they change."""

import asyncio

from agentsvc.accounts.keys import Role
from agentsvc.base.bus import Notice, Subject, Subscription
from agentsvc.http.keys import EVENT_BUS, KEYRING
from tests.service import Client, Service


async def listen(service: Service, user: str = "admin") -> Subscription:
    user_id = await service.app[KEYRING].find_user(user)
    assert user_id is not None
    return service.app[EVENT_BUS].subscribe(user_id, lambda _: True)


async def hear(listener: Subscription, subject: Subject, subject_id: str) -> Notice:
    async with asyncio.timeout(30):
        while True:
            for news in await listener.take():
                if (news.subject, news.id) == (subject, subject_id):
                    return news


async def test_a_start_announces_all_it_makes(client: Client, service: Service) -> None:
    with await listen(service) as listener:
        task = await client.start_task()
        heard = await listener.take()
    conversation_id = task["app_conversation_id"] or heard[0].conversation_id
    assert {news.subject for news in heard} >= {Subject.CONVERSATION, Subject.START_TASK}
    assert {news.conversation_id for news in heard} <= {conversation_id, None}


async def test_what_changes_is_announced(client: Client, service: Service) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.wait_for_execution(conversation_id, "finished")
    with await listen(service) as listener:
        await client.patch(f"/api/v1/app-conversations/{conversation_id}", json={"title": "new"})
        news = await hear(listener, Subject.CONVERSATION, conversation_id)
        assert not news.is_deleted
        await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
        assert not (await hear(listener, Subject.SANDBOX, sandbox_id)).is_deleted


async def test_what_is_deleted_is_announced(client: Client, service: Service) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.wait_for_execution(conversation_id, "finished")
    with await listen(service) as listener:
        await client.delete(f"/api/v1/app-conversations/{conversation_id}")
        async with asyncio.timeout(30):
            gone: set[str] = set()
            while not {conversation_id, sandbox_id} <= gone:
                gone |= {news.id for news in await listener.take() if news.is_deleted}


async def test_a_new_sandbox_is_announced(client: Client, service: Service) -> None:
    with await listen(service) as listener:
        answer = await client.post("/api/v1/sandboxes")
        await hear(listener, Subject.SANDBOX, answer.json()["id"])


async def test_nobody_hears_of_another_users_things(client: Client, service: Service) -> None:
    other = await service.make_client("eve", Role.MEMBER)
    await other.save_settings()
    with await listen(service, "eve") as listener:
        await client.start_conversation()
        own = (await other.start_task())["id"]
        async with asyncio.timeout(30):
            heard = await listener.take()
        assert (Subject.START_TASK, own) in {(news.subject, news.id) for news in heard}
        assert len({news.id for news in heard if news.subject is Subject.START_TASK}) == 1
