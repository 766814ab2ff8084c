"""A small client of the Kubernetes API, which is not the one that the plugin uses.

Standard library only, since the keeper of a cluster uses it, too.
"""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

_SECONDS: Final = 30.0
_MANAGER: Final = "agentsvc-tests"


class Refused(Exception):
    """The API answers with an error; `status` is its number."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """Asks an API server as one user, each time on a connection of its own."""

    def __init__(self, url: str, token: str, authority: Path, *, seconds: float = _SECONDS) -> None:
        self.url = url
        self.token = token
        self.authority = authority
        self._seconds = seconds

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return what a list has, without its envelope."""
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def create(self, path: str, thing: object) -> Any:
        return self.ask("POST", path, thing)

    def delete(self, path: str, options: object = None) -> Any:
        return self.ask("DELETE", path, options)

    def patch(self, path: str, change: object) -> Any:
        return self.ask("PATCH", path, change, kind="application/merge-patch+json")

    def apply(self, path: str, thing: object) -> Any:
        """Have a thing be as described, whether it was there or not."""
        path = f"{path}?fieldManager={_MANAGER}&force=true"
        return self.ask("PATCH", path, thing, kind="application/apply-patch+yaml")

    def find(self, path: str) -> Any:
        """Return a thing, or None if the API knows none of this name."""
        try:
            return self.get(path)
        except Refused as exc:
            if exc.status == http.client.NOT_FOUND:
                return None
            raise

    def is_ready(self) -> bool:
        try:
            self.text("GET", "/readyz")
        except (OSError, http.client.HTTPException, Refused):
            return False
        return True

    def ask(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> Any:
        return json.loads(self.text(method, path, body, kind=kind))

    def text(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> str:
        """Return an answer as it is; raises Refused."""
        context = ssl.create_default_context(cafile=str(self.authority))
        address = urlsplit(self.url).netloc
        connection = http.client.HTTPSConnection(address, timeout=self._seconds, context=context)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            said = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise Refused(answer.status, said)
        return said
