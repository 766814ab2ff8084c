"""Paths with variables, whose patterns are made when the first request comes near them."""

import re
from functools import cached_property
from typing import Any, Final

import yarl
from aiohttp import web

_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VALUE: Final = r"[^{}/]+"
_PLAIN: Final = re.compile(rf"(?:[A-Za-z0-9._/-]|{_VARIABLE.pattern})+")


class VariablePath(web.Resource):
    """What `aiohttp.web.DynamicResource` is, for paths in which a variable takes one part.

    A start makes hundreds of paths, and most servers are asked for few of them.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    @staticmethod
    def fits(path: str) -> bool:
        """Whether a path has variables, and nothing that needs more than this."""
        return "{" in path and _PLAIN.fullmatch(path) is not None

    @property
    def canonical(self) -> str:
        """The path with its variables in braces."""
        return self._path

    def add_prefix(self, prefix: str) -> None:
        """Put the path below another one."""
        self._path = prefix + self._path
        self.__dict__.pop("_pattern", None)

    def raw_match(self, path: str) -> bool:
        """Whether this was made for that path."""
        return self._path == path

    def get_info(self) -> Any:
        """Return the path and its pattern."""
        return {"formatter": self._path, "pattern": self._pattern}

    def url_for(self, **parts: str) -> yarl.URL:
        """Return the path with values for its variables."""
        quoted = {name: yarl.URL.build(path=part).raw_path for name, part in parts.items()}
        return yarl.URL.build(path=self._path.format_map(quoted), encoded=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = _VARIABLE.split(self._path)
        made = (f"(?P<{one}>{_VALUE})" if n % 2 else re.escape(one) for n, one in enumerate(parts))
        return re.compile("".join(made))

    def _match(self, path: str) -> dict[str, str] | None:
        found = self._pattern.fullmatch(path)
        if found is None:
            return None
        # Only these two are quoted where aiohttp looks for a path.
        return {
            name: value.replace("%2F", "/").replace("%25", "%")
            for name, value in found.groupdict().items()
        }
