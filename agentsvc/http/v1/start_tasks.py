"""Handlers of start tasks."""

from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest
from agentsvc.http.keys import CONVERSATIONS, PRINCIPAL
from agentsvc.http.routes import EXAMPLE_ID, Example, Route, Scope
from agentsvc.http.urls import links_of
from agentsvc.http.v1.types_sandboxes import check_ids
from agentsvc.http.v1.types_start import (
    StartTaskFilter,
    StartTaskIds,
    StartTaskQuery,
    StartTaskView,
    from_start_task,
)
from agentsvc.http.wire import Page, json_response, read_query

PREFIX: Final = "/api/v1/app-conversations/start-tasks"


async def get_start_tasks(request: web.Request) -> web.Response:
    """GET /app-conversations/start-tasks.

    A list of as many items as `ids`, in their order, null for each that is unknown.
    """
    ids = check_ids([each.hex for each in read_query(request, StartTaskIds).ids])
    tasks = await request.app[CONVERSATIONS].starts.find_many(request[PRINCIPAL].user_id, ids)
    links = links_of(request)
    return json_response([from_start_task(task, links) if task else None for task in tasks])


async def search_start_tasks(request: web.Request) -> web.Response:
    """GET /app-conversations/start-tasks/search.

    Newest first unless `sort_order` says otherwise.
    """
    query = read_query(request, StartTaskQuery)
    tasks, next_page_id = await request.app[CONVERSATIONS].starts.search(
        request[PRINCIPAL].user_id,
        sort=query.sort_order,
        page_id=query.page_id,
        limit=query.limit,
        **query.to_filter(),
    )
    links = links_of(request)
    return json_response(
        Page(items=[from_start_task(task, links) for task in tasks], next_page_id=next_page_id)
    )


async def count_start_tasks(request: web.Request) -> web.Response:
    """GET /app-conversations/start-tasks/count.

    With the filters of the search.
    """
    wanted = read_query(request, StartTaskFilter).to_filter()
    return json_response(
        await request.app[CONVERSATIONS].starts.count(request[PRINCIPAL].user_id, **wanted)
    )


ROUTES: Final = (
    Route(
        method="GET",
        path=PREFIX,
        handler=get_start_tasks,
        scope=Scope.READ,
        rank="P1",
        summary="Get start tasks by id",
        query=StartTaskIds,
        answer=list[StartTaskView | None],
        errors=(BadRequest,),
        example=Example(query={"ids": [EXAMPLE_ID]}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/search",
        handler=search_start_tasks,
        scope=Scope.READ,
        rank="P1",
        summary="Search start tasks",
        query=StartTaskQuery,
        answer=Page[StartTaskView],
        example=Example(query={"limit": 10}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/count",
        handler=count_start_tasks,
        scope=Scope.READ,
        rank="P2",
        summary="Count start tasks",
        query=StartTaskFilter,
        answer=int,
    ),
)
