"""A web application built ahead, of which each fork takes again all that depends on who it is.

Used by `agentsvc.backends.warm`, with the standard library alone. What is costly is the table of
routes, which is the same for all. The rest, from the configuration to the services, is thrown away
where the application was built, and made by its own code in each fork at the moment at which that
imports it. Whether anything was kept is looked for, not assumed.
"""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_STATE: Final = "conversation_registry"
"""What of the state of an application its routes may be made of."""

_CHANGED: Final = frozenset({"routes", "lifespan_context", "_routes_version"})
"""What routes change of a router when they are added to it."""

_NOWHERE: Final[Mapping[str, Any]] = {
    "type": "http",
    "method": "GET",
    "path": "/-",
    "root_path": "",
    "path_params": {},
    "query_string": b"",
    "headers": [],
}
"""A request that none of the routes is for."""


class Kept(Exception):  # it is a fact, and no fault
    """Something of what the application was built with is still there."""


class Built:
    """The modules of an application that do things when they are imported, and its routes."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Take a plan as in `agentsvc.backends.ahead.Application`; an empty one is for none."""
        self._plan = plan
        self._modules: dict[str, ModuleType] = {}
        self._routes: list[Any] = []
        self._router: Any = None
        self._registry: type | None = None
        self._add_routes: Any = None

    def build(self) -> str:
        """Build it, or return why that is for each fork to do."""
        if not self._plan:
            return "it is not known how"
        # What fails half-way leaves things behind, so another process tries it first.
        reason = _in_a_fork(self._build)
        if not reason:
            self._build()
        return reason

    def is_there(self, name: str) -> bool:
        """Say whether a module is there for forks, which does nothing for them before they ask."""
        return name in self._modules

    def offer(self) -> None:
        """In a fork: have the modules imported in the usual way, and take again what they took."""
        if self._modules:
            sys.meta_path.insert(0, _Finder(self._modules, self._again))

    def _build(self) -> None:
        kin = self._plan["kin"]
        before = _of_kin(kin)
        self._record(importlib.import_module(self._plan["name"]))
        for name, taken in self._plan["taken"].items():
            module = sys.modules.pop(name)
            for attribute in taken:
                setattr(module, attribute, None)
            parent, _, child = name.rpartition(".")
            with contextlib.suppress(AttributeError):
                delattr(sys.modules[parent], child)
            self._modules[name] = module
        for name, attribute in self._plan["forgotten"]:
            module = self._modules.get(name) or sys.modules[name]
            if not hasattr(module, attribute):
                raise Kept(f"{name} has no {attribute}")
            setattr(module, attribute, None)
        gc.collect()
        known = {id(one) for one in before}
        for one in _of_kin(kin):
            if id(one) not in known:
                raise Kept(f"a {type(one).__name__} is kept")

    def _record(self, module: ModuleType) -> None:
        """Have it make one more application, and keep what it adds to that as routes."""
        add = getattr(module, self._plan["routes"])

        def record(app: Any) -> None:
            state = app.state._state  # noqa: SLF001  # there is no other way to see all of it
            registry = state[_STATE]
            # Nothing but the kind of the registry may count for the routes: what else is asked
            # for is not there.
            state.clear()
            vars(registry).clear()
            state[_STATE] = registry
            router, start = app.router, len(app.router.routes)
            earlier = _sizes(router)
            add(app)
            changed = {name for name, value in _sizes(router).items() if value != earlier[name]}
            if not changed <= _CHANGED:
                raise Kept(f"its routes change {min(changed - _CHANGED)}")
            self._routes, self._router = router.routes[start:], router
            for route in self._routes:
                # What they keep for themselves they make when they are first looked at.
                route.matches(dict(_NOWHERE))
            self._registry = type(registry)
            state.clear()
            raise _Recorded

        setattr(module, self._plan["routes"], record)
        with contextlib.suppress(_Recorded):
            getattr(module, self._plan["make"])()
        if self._registry is None:
            raise Kept("it adds no routes")
        self._add_routes = add
        setattr(module, self._plan["routes"], self._add)

    def _add(self, app: Any) -> None:
        """Add the routes to an application, or have them made if it is of another kind."""
        if type(getattr(app.state, _STATE)) is not self._registry:
            self._add_routes(app)
            return
        app.router.routes.extend(self._routes)
        app.router.lifespan_context = self._router.lifespan_context
        app.router._mark_routes_changed()  # noqa: SLF001  # as adding one does
        # The routes look there for what is to be called in place of something else.
        overridden = self._router.dependency_overrides_provider
        overridden.dependency_overrides = app.dependency_overrides

    def _again(self, module: ModuleType) -> None:
        for name in self._modules:
            if name == module.__name__:
                break
            importlib.import_module(name)
        for attribute, maker in self._plan["taken"][module.__name__].items():
            setattr(module, attribute, getattr(module, maker)())


class _Recorded(Exception):  # it is what was wanted
    """The routes are there, and more of the application is not needed."""


class _Finder(MetaPathFinder, Loader):
    """Gives a fork the modules that there are, each once."""

    def __init__(self, modules: Mapping[str, ModuleType], again: Any) -> None:
        self._modules = dict(modules)
        self._again = again

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return where one of them was found."""
        del path, target
        module = self._modules.get(fullname)
        if module is None or module.__spec__ is None:
            return None
        found = module.__spec__
        spec = ModuleSpec(fullname, self, origin=found.origin)
        spec.has_location = found.has_location
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that there is."""
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Have it take again what it took when it was imported elsewhere."""
        del self._modules[module.__name__]
        self._again(module)


def _sizes(router: object) -> dict[str, tuple[int, int]]:
    """Return what tells whether an attribute of a router was changed."""
    return {
        name: (id(value), len(value) if isinstance(value, list | dict) else 0)
        for name, value in vars(router).items()
    }


def _of_kin(kin: str) -> list[Any]:
    """Return all objects whose class is of such a module, but for routers, which are the same for all."""
    there = gc.get_objects()
    kinds = {kind for kind in set(map(type, there)) if _is_kin(kind, kin)}
    return [one for one in there if type(one) in kinds]


def _is_kin(kind: type, kin: str) -> bool:
    module = kind.__module__
    return (
        type(module) is str
        and module.startswith(kin)
        and not issubclass(kind, type)
        and not any(base.__name__ == "APIRouter" for base in kind.__mro__)
    )


def _in_a_fork(work: Any) -> str:
    """Do something in a fork that ends with it, and return why it failed there, or nothing."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "it has ended"
        try:
            work()
            answer = ""
        except Exception as exc:  # noqa: BLE001  # whatever a package does
            answer = f"{type(exc).__name__}: {exc}"
        finally:
            os.write(said, (answer or "!").encode()[:512])
            os._exit(0)
    os.close(said)
    with os.fdopen(heard, "rb") as file:
        answer = file.read().decode(errors="replace")
    with contextlib.suppress(ChildProcessError):  # somebody else, or nobody, is told of its end
        os.waitpid(pid, 0)
    return "" if answer == "!" else answer or "it has ended"
