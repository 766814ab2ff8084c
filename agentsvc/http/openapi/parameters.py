"""Parameters in the OpenAPI document: types, descriptions, examples."""

from collections.abc import Mapping
from typing import Any, Final

from agentsvc.http.openapi.schemas import Json, Schemas, without_null
from agentsvc.http.path_parts import part_of
from agentsvc.http.routes import Route, types_in

IDEMPOTENCY_KEY: Final[Json] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Unique key of the request: for a day, repeats with the same key get the same"
    " response and are not executed again",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}
"""The parameter of requests that support idempotent retries."""


def path_parameters(route: Route, schemas: Schemas) -> list[Json]:
    """Describe the path parameters of a route."""
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": part_of(name).text,
            "schema": schemas.of(kind),
            "example": part_of(name).example,
        }
        for name, kind in types_in(route).items()
    ]


def query_parameters(kind: Any, schemas: Schemas, example: Mapping[str, Any]) -> list[Json]:
    """Describe the query parameters of a query struct."""
    shape = schemas.find(schemas.of(kind))
    required = shape.get("required", [])
    return [
        _query_parameter(name, without_null(field), name in required, example)
        for name, field in shape.get("properties", {}).items()
    ]


def _query_parameter(name: str, schema: Json, is_required: bool, example: Any) -> Json:
    parameter: Json = {"name": name, "in": "query"}
    if "description" in schema:
        parameter["description"] = schema["description"]
    parameter["schema"] = {key: value for key, value in schema.items() if key != "description"}
    if is_required:
        parameter["required"] = True
    if name in example:
        parameter["example"] = example[name]
    return parameter
