"""Generates the OpenAPI 3.1 document from the routes and their types.

`schemas` converts types to JSON schemas; `parameters`, `answers` and `operations` convert a route
to an operation; `document` combines them. All of it except `handlers` is pure.
"""

from agentsvc.http.openapi.document import describe

__all__ = ["describe"]
