"""How types and routes become a description."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import openapi_spec_validator
import pytest
from aiohttp import web

from agentsvc.base.errors import AgentUnavailable, Conflict, Unsupported
from agentsvc.base.values import Secret, SentSecret
from agentsvc.http.openapi import describe
from agentsvc.http.openapi.answers import errors_of
from agentsvc.http.openapi.fields import SHARED
from agentsvc.http.openapi.schemas import (
    as_response_schema,
    name_components,
    schemas_of,
    to_ecma,
    without_null,
)
from agentsvc.http.path_parts import names_in, plain_path
from agentsvc.http.routes import FORM, HTML, JSON, Example, Route, Scope, shown_as


class Colour(StrEnum):
    """What it looks like."""

    RED = "red"
    """As a rose is."""
    BLUE = "blue"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Something."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[a-z]+\Z")] = "a"
    note: str | None = None


class Listed[T](msgspec.Struct, frozen=True, kw_only=True):
    """Several of something."""

    items: list[T]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is decoded in two steps."""

    raw: Annotated[msgspec.Raw, shown_as(Item)]
    key: Secret
    more: Annotated[dict[str, Any], shown_as(Item)] | None = None


async def answer(_request: web.Request) -> web.Response:
    return web.Response()


def route(**fields: Any) -> Route:
    given = {"method": "GET", "path": "/x", "scope": Scope.READ, "answer": Item, **fields}
    return Route(handler=answer, summary="Do it", **given)


def only(*routes: Route) -> dict[str, Any]:
    """Return the one operation of a valid description."""
    document = describe(routes)
    openapi_spec_validator.validate(document)
    [item] = document["paths"].values()
    [operation] = item.values()
    found: dict[str, Any] = operation
    return found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\A[a-z]+\Z", "^[a-z]+$"),
        (r"\A[^\0\r\n]*\Z", r"^[^\x00\r\n]*$"),
        (r"\A(?i:http://|x:)", "^(?:[Hh][Tt][Tt][Pp]://|[Xx]:)"),
        ("a", "a"),
    ],
)
def test_a_pattern_is_written_as_javascript_has_it(pattern: str, expected: str) -> None:
    assert to_ecma(pattern) == expected


def test_a_schema_has_no_python_in_it() -> None:
    made = schemas_of([Item])
    assert made.of(Item) == {"$ref": "#/components/schemas/Item"}
    assert made.components["Item"]["properties"]["name"]["pattern"] == "^[a-z]+$"
    assert "required" not in made.components["Item"]


def test_a_value_is_shown_as_what_it_is_decoded_to_later() -> None:
    properties = schemas_of([Kept]).components["Kept"]["properties"]
    item = {"$ref": "#/components/schemas/Item"}
    assert properties["raw"] == item
    assert properties["more"] == {"anyOf": [item, {"type": "null"}], "default": None}
    assert properties["key"] == {"type": "string", "format": "password", "writeOnly": True}


def test_a_field_is_described_by_what_is_written_below_it() -> None:
    class First(msgspec.Struct, frozen=True, kw_only=True):
        """A first one."""

        name: str
        """What it is
        called"""
        limit: int
        """Its own limit"""
        page_id: str
        other: str

    class Second(First, frozen=True, kw_only=True, rename="camel"):
        """A second one."""

        limit: int
        another_one: Colour
        """What is more"""

    made = schemas_of([Second])
    fields = made.components["Second"]["properties"]
    assert {name: field.get("description") for name, field in fields.items()} == {
        "name": "What it is called",
        "limit": "Its own limit",
        "page_id": SHARED["page_id"],
        "other": None,
        "anotherOne": "What is more",
    }
    assert fields["anotherOne"]["$ref"] == "#/components/schemas/Colour"
    told = "What it looks like.\n\n- `red`: As a rose is."
    assert made.components["Colour"]["description"] == told


def test_an_operation_is_described_by_what_its_handler_says_below_its_first_line() -> None:
    async def handler(_request: web.Request) -> web.Response:
        """GET /x.

        It is done
        at once.
        """
        return web.Response()

    made = msgspec.structs.replace(route(), handler=handler)
    assert only(made)["description"] == "It is done at once.\n\nNeeds any key of a user."


def test_what_may_be_null_and_is_a_secret_is_only_written() -> None:
    class Body(msgspec.Struct, frozen=True, kw_only=True):
        """What is sent."""

        key: SentSecret | None
        """A key; null: none"""

    field = schemas_of([Body]).components["Body"]["properties"]["key"]
    assert field["writeOnly"] is True


def test_what_cannot_be_described_is_refused() -> None:
    class Odd:
        pass

    with pytest.raises(TypeError):
        schemas_of([Odd])


def test_a_list_of_something_is_named_for_it() -> None:
    made = schemas_of([Listed[Item], Listed[Item | None], Listed[dict[str, Any]]])
    assert set(made.components) == {"Item", "ItemListed", "ItemOptionalListed", "dictstrAnyListed"}
    assert made.components["ItemListed"]["title"] == "ItemListed"


def test_no_two_components_have_one_name() -> None:
    names = name_components(
        {
            "agentsvc.http.v0.types_a.Body": {"title": "Body"},
            "agentsvc.http.v1.types_a.Body": {"title": "Body"},
            "agentsvc.agentserver.responses.Page": {"title": "Page"},
            "agentsvc.http.v1.types_one_two.Same": {"title": "Same"},
            "agentsvc.http.v1.three.Same": {"title": "Same"},
            "Alone": {"title": "Alone"},
        }
    )
    assert list(names.values()) == [
        "V0Body",
        "Body",
        "AgentPage",
        "OneTwoSame",
        "ThreeSame",
        "Alone",
    ]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "string"}),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            {"type": "string"},
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "integer"}], "default": 1},
            {"anyOf": [{"type": "string"}, {"type": "integer"}], "default": 1},
        ),
    ],
)
def test_where_nothing_can_be_null_is_left_out(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert without_null(schema) == expected


def test_an_answer_has_every_field_that_has_a_default() -> None:
    component = schemas_of([Item]).components["Item"]
    shown = as_response_schema(component)
    assert shown["required"] == ["name", "note"]
    assert "default" not in shown["properties"]["name"]
    assert as_response_schema({"type": "string"}) == {"type": "string"}


def test_what_is_also_read_keeps_its_defaults() -> None:
    document = describe([route(method="POST", body=Item, example=Example(body={}))])
    assert "required" not in document["components"]["schemas"]["Item"]
    assert "required" in describe([route()])["components"]["schemas"]["Item"]


def test_a_path_is_written_without_what_its_parts_must_look_like() -> None:
    path = "/files/{sandbox_id}/{path:.+}"
    assert plain_path(path) == "/files/{sandbox_id}/{path}"
    assert names_in(path) == ["sandbox_id", "path"]
    parameters = only(route(path=path))["parameters"]
    assert [(one["name"], one["required"]) for one in parameters] == [
        ("sandbox_id", True),
        ("path", True),
    ]


def test_a_route_for_any_method_is_described_under_each() -> None:
    [item] = describe([route(method="*")])["paths"].values()
    assert set(item) == {"get", "put", "post", "delete", "options", "head", "patch"}


def test_a_query_is_described_parameter_by_parameter() -> None:
    class Query(msgspec.Struct, frozen=True, kw_only=True):
        ids: list[str] = msgspec.field(name="id")
        """Which ones"""
        kind: Literal["a", "b"] | None = None
        limit: int = 5

    example = Example(query={"id": ["1"]})
    parameters = only(route(query=Query, example=example))["parameters"]
    assert parameters == [
        {
            "name": "id",
            "in": "query",
            "description": "Which ones",
            "schema": {"type": "array", "items": {"type": "string"}},
            "required": True,
            "example": ["1"],
        },
        {"name": "kind", "in": "query", "schema": {"enum": ["a", "b"]}},
        {
            "name": "limit",
            "in": "query",
            "description": SHARED["limit"],
            "schema": {"type": "integer", "default": 5},
        },
    ]


def test_a_body_that_may_be_absent_is_not_required() -> None:
    optional = only(route(method="POST", body=Item | None))["requestBody"]
    assert optional == {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Item"}}}}
    assert only(route(method="POST", body=Item, example=Example(body={})))["requestBody"][
        "required"
    ]


def test_an_answer_that_is_no_json_has_its_own_media_type() -> None:
    operation = only(route(answer=str, media="text/plain"))
    assert operation["responses"]["200"]["content"] == {
        "text/plain": {"schema": {"type": "string"}}
    }
    operation = only(route(answer=bytes, media="application/zip"))
    assert operation["responses"]["200"]["content"] == {"application/zip": {}}


def test_an_operation_that_only_refuses_has_no_other_answer() -> None:
    operation = only(route(answer=None, status=410, errors=(Conflict,)))
    assert set(operation["responses"]) == {"400", "401", "409", "429", "500", "504"}


def test_errors_of_one_status_are_one_answer_with_all_their_codes() -> None:
    one = route(errors=(Unsupported, Conflict, AgentUnavailable))
    document = describe([one])
    responses = document["components"]["responses"]
    schema = responses["conflict-unsupported"]["content"][JSON]["schema"]
    assert schema["properties"]["code"]["enum"] == ["conflict", "unsupported"]
    assert "Retry-After" in responses["agent_unavailable"]["headers"]
    assert "Retry-After" not in responses["conflict-unsupported"]["headers"]
    assert document["paths"]["/x"]["get"]["responses"]["502"] == {
        "$ref": "#/components/responses/agent_unavailable"
    }


@pytest.mark.parametrize(
    ("fields", "statuses"),
    [
        ({"scope": Scope.OPEN}, {400, 500, 504}),
        ({"scope": Scope.OPEN, "is_stream": True}, {400, 500}),
        ({"scope": Scope.READ}, {400, 401, 429, 500, 504}),
        ({"scope": Scope.RUN}, {400, 401, 403, 429, 500, 504}),
        ({"scope": Scope.MANAGE}, {400, 401, 403, 429, 500, 504}),
        ({"scope": Scope.ADMIN_READ}, {400, 401, 403, 429, 500, 504}),
        ({"scope": Scope.ADMIN}, {400, 401, 403, 429, 500, 504}),
        ({"scope": Scope.SANDBOX}, {400, 401, 403, 429, 500, 504}),
        ({"path": "/{name}"}, {400, 401, 404, 422, 429, 500, 504}),
        ({"query": Item}, {400, 401, 422, 429, 500, 504}),
        ({"body": Item}, {400, 401, 413, 415, 422, 429, 500, 504}),
    ],
)
def test_what_goes_without_saying_is_said(fields: dict[str, Any], statuses: set[int]) -> None:
    assert {error.status for error in errors_of(route(**fields))} == statuses


def test_what_a_page_sends_may_be_refused_with_a_page() -> None:
    form = {"method": "POST", "body": Item, "reads": (FORM,), "answer": str, "media": HTML}
    refused = describe([route(**form)])["components"]["responses"]["not_authenticated-page"]
    assert set(refused["content"]) == {JSON, HTML}


def test_it_says_below_which_prefix_the_operations_are() -> None:
    assert describe([route()])["servers"] == [{"url": "/"}]
    assert describe([route()], prefix="/agents")["servers"] == [{"url": "/agents"}]


def test_a_page_takes_the_key_as_a_password_too() -> None:
    assert {"basic": []} in only(route(is_page=True))["security"]
    assert {"basic": []} not in only(route())["security"]
    assert only(route(scope=Scope.OPEN, is_page=True))["security"] == []
