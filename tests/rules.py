"""Checks of the source tree that no linter has: package imports, private members, sizes, words.

`python -m tests.rules` is a part of `poe lint`; it prints the sizes that the project holds itself to,
and fails where a rule is broken.
"""

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CODE: Final = ("agentsvc", "plugins")

MAX_LINES: Final = 72_689
"""Lines of code without blank lines, comments and docstrings. The aim is 40,000: only a new feature may raise it."""
MAX_PACKAGES: Final = 16
MAX_MODULES: Final = 4
MAX_COLLABORATORS: Final = 7
MAX_FUNCTION_LINES: Final = 60

OPEN: Final = (
    "agentsvc.cli",
    "agentsvc.extension",
    "agentsvc.http.openapi",
    "agentsvc.plugin.egress",
)
"""Packages whose modules are imported by themselves: programs of their own, what only some commands
need, and the interface of extensions, of which each plugin needs another part."""

PRIVATE: Final[dict[str, str]] = {}
"""Uses of private members of other packages that there are reasons for, as `file:name`; at most 5."""

WORDS: Final = {
    "doorstep": "websocket_auth",
    "crowds": "rate_limit",
    "seldom": "rate_limit",
    "surroundings": "environment, or live_settings",
    "departures": "user_deletion",
    "misfits": "validation",
    "announcements": "event_bus",
}
"""Words that are no terms of the field, and what to say instead; see the glossary."""

NAMES: Final = {
    "carrying": "transfer",
    "departure": "user_deletion",
    "means": "features",
    "most": "max",
    "passage": "proxy",
    "patience": "timeout",
    "seats": "slots",
}
"""Words of the same kind that are plain English elsewhere, and are no part of a name."""

STORED: Final = frozenset({"most_attempts", "most_missed", "most_per_user"})
"""Keys of the configuration and of the API, which keep their names."""

_VAGUE: Final = re.compile(r"(What|Which|Who|How|Whether)\b")
"""How no docstring of a module begins: it says what the module does or is."""
_SELF: Final = ("self", "cls")
_DUNDER: Final = re.compile(r"__\w+__$")
_PUBLIC: Final = ("_exit",)
"""Documented by their packages, for all that they begin with an underscore."""


def python_files() -> Iterator[Path]:
    """Return every module of the server and of the plugins that come with it."""
    for name in CODE:
        yield from sorted((ROOT / name).rglob("*.py"))


@functools.lru_cache(maxsize=1)
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


@functools.lru_cache(maxsize=1)
def _nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, for each of the checks that look at every one."""
    return tuple(ast.walk(tree))


def code_lines(source: bytes) -> int:
    """Count the lines that hold code: no blank ones, no comments, no docstrings."""
    no_code = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENCODING, tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in _nodes(_parsed(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def package_of(module: str) -> str | None:
    """Return the package that a module of the server belongs to, None for one at the top."""
    for package in OPEN:
        if f"{module}.".startswith(f"{package}."):
            return None
    name = ".".join(module.split(".")[:2])
    return name if (ROOT / name.replace(".", "/")).is_dir() else None


def module_of(file: Path) -> str:
    """Return the dotted name of a module by its file."""
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def deep_imports(file: Path, tree: ast.Module) -> Iterator[str]:
    """Find imports that reach into another package, past its `__init__`."""
    own = ".".join(module_of(file).split(".")[:2])
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package = package_of(name) if name.startswith("agentsvc.") else None
            if package is not None and package not in (own, name):
                yield f"{node.lineno}: imports {name}, not {package}"


def private_members(file: Path, tree: ast.Module) -> Iterator[str]:
    """Find private names of other packages: imported, read off an object, or inherited."""
    for node in _nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                if _is_private(alias.name) and not (node.module or "").startswith("agentsvc"):
                    yield f"{node.lineno}: imports {alias.name} of {node.module}"
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            base = node.value
            if isinstance(base, ast.Name) and base.id not in _SELF and base.id in _imported(tree):
                yield f"{node.lineno}: reads {base.id}.{node.attr}"
        elif isinstance(node, ast.ClassDef):
            yield from _inherited(node, tree)


def _inherited(kind: ast.ClassDef, tree: ast.Module) -> Iterator[str]:
    """Find private names that a class has from a parent of another package."""
    bases = {ast.unparse(base).partition("[")[0].partition(".")[0] for base in kind.bases}
    foreign = bases & _imported(tree, of_others=True)
    if not foreign:
        return
    known = {
        item.name for item in ast.walk(kind) if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    } | {
        item.attr for item in ast.walk(kind)
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
    } | {
        item.target.id for item in kind.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    } | {
        target.id for item in kind.body if isinstance(item, ast.Assign)
        for target in item.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for item in ast.walk(kind):
        if (
            isinstance(item, ast.Attribute)
            and isinstance(item.value, ast.Name)
            and item.value.id == "self"
            and _is_private(item.attr)
            and item.attr not in known
        ):
            yield f"{item.lineno}: {kind.name} uses {item.attr} of {', '.join(sorted(foreign))}"


@functools.lru_cache(maxsize=2)
def _imported(tree: ast.Module, *, of_others: bool = False) -> frozenset[str]:
    found: set[str] = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            names = [
                (alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names
            ]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [(node.module or "", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        found.update(
            name for module, name in names if not (of_others and module.startswith("agentsvc"))
        )
    return frozenset(found)


def _is_private(name: str) -> bool:
    return name.startswith("_") and name not in _PUBLIC and not _DUNDER.match(name)


def collaborators(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return each class with the number of arguments of its constructor, itself not counted."""
    for node in _nodes(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    given = item.args
                    yield node.name, len(given.args) + len(given.kwonlyargs) - 1


def long_functions(tree: ast.AST, within: str = "") -> Iterator[str]:
    """Find functions that are longer than one screen."""
    for node in ast.iter_child_nodes(tree):
        name = f"{within}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.lineno}: {name} has {lines} lines"
        yield from long_functions(node, f"{name}." if isinstance(node, ast.ClassDef) else within)


def private_names(name: str, tree: ast.Module) -> Iterator[str]:
    """Find names with a word that is no term of the field: of a module, and all that it defines."""
    defined = [(name.rpartition("/")[2].removesuffix(".py"), 1)]
    for node in _nodes(tree):
        match node:
            case ast.ClassDef(name=known) | ast.FunctionDef(name=known):
                defined.append((known, node.lineno))
            case ast.AsyncFunctionDef(name=known) | ast.arg(arg=known):
                defined.append((known, node.lineno))
            case ast.Name(id=known, ctx=ast.Store()) | ast.Attribute(attr=known, ctx=ast.Store()):
                defined.append((known, node.lineno))
            case _:
                pass
    for known, line in defined:
        words = known.lower().strip("_").split("_")
        if known in STORED or known == "most":
            continue
        for word in NAMES.keys() & set(words):
            yield f"{line}: the name `{known}`; say {NAMES[word]}"


def vague_docstring(tree: ast.Module) -> Iterator[str]:
    """Find a docstring of a module that begins with a question word."""
    found = _VAGUE.match(ast.get_docstring(tree) or "")
    if found:
        yield f"1: the docstring begins with `{found[1]}`; say what the module does or is"


def private_words(source: str) -> Iterator[str]:
    """Find words that the glossary replaces."""
    if not WORDS:
        return
    pattern = re.compile(r"(?<![A-Za-z])(" + "|".join(WORDS) + r")(?![a-z])", re.IGNORECASE)
    for number, line in enumerate(source.splitlines(), 1):
        for match in pattern.finditer(line):
            yield f"{number}: `{match[1]}`; say {WORDS[match[1].lower()]}"


def main() -> int:
    """Print the sizes, and each place that breaks a rule; returns the exit code."""
    broken: list[str] = []
    lines = dict.fromkeys(CODE, 0)
    large: set[str] = set()
    for file in python_files():
        source = file.read_bytes()
        tree = _parsed(source)
        name = file.relative_to(ROOT).as_posix()
        lines[name.partition("/")[0]] += code_lines(source)
        found = [*deep_imports(file, tree), *long_functions(tree), *private_words(source.decode())]
        found += [*vague_docstring(tree), *private_names(name, tree)]
        found += [
            one for one in private_members(file, tree) if f"{name}:{one.split()[-1]}" not in PRIVATE
        ]
        broken += [f"{name}:{one}" for one in found]
        large |= {kind for kind, count in collaborators(tree) if count > MAX_COLLABORATORS}
    top = ROOT / "agentsvc"
    packages = sorted(file.parent.name for file in top.glob("*/__init__.py"))
    modules = sorted(file.name for file in top.glob("*.py") if file.name != "__init__.py")
    total = sum(lines.values())
    parts = f"{lines['agentsvc']} in agentsvc, {lines['plugins']} in plugins"
    print(f"lines of code: {total} ({parts})")  # noqa: T201
    print(f"packages: {len(packages)}, modules beside them: {len(modules)}")  # noqa: T201
    print(f"constructors with more than {MAX_COLLABORATORS} arguments: {len(large)}")  # noqa: T201
    if total > MAX_LINES:
        broken.append(f"more lines of code than {MAX_LINES}")
    if len(packages) > MAX_PACKAGES:
        broken.append(f"more packages than {MAX_PACKAGES}: {', '.join(packages)}")
    if len(modules) > MAX_MODULES:
        broken.append(f"more modules than {MAX_MODULES}: {', '.join(modules)}")
    broken += [f"{name} takes too many arguments" for name in sorted(large)]
    for one in broken:
        print(one)  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
