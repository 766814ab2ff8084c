"""The published description of the server: OpenAPI 3.1, made from routes and the types they name.

`schemas` turns types into JSON schemas, `parameters`, `answers` and `operations` turn one route
into its operation, `document` puts them together. All of it is pure.
"""

from agentsvc.http.openapi.document import describe

__all__ = ["describe"]
