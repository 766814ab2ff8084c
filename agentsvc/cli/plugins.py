"""`agentsvc plugins`: lists plugins, checks a backend on this machine, creates a new plugin."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click

from agentsvc import __version__
from agentsvc.base import OrderRejected, new_id
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import config_option, example, json_option, load_config
from agentsvc.cli.text import json_text, print_table, to_records
from agentsvc.config import Config, to_toml
from agentsvc.plugin import API_VERSION, Health, Port, Spec
from agentsvc.sandboxes import BUILT_IN, Backend, BackendRegistry, Plugin, PluginHost
from agentsvc.testing import CHECKS, WORKLOAD, CheckStatus, KitOptions, check_backend, skeleton

_KIT_SPEC: Final = "kit"
_WEB: Final = Port(name="web")
_EVERYWHERE: Final = {"KIT_HOST": "0.0.0.0"}  # noqa: S104  # inside of the sandbox


@click.group("plugins", epilog=example("agentsvc plugins list"))
def command() -> None:
    """List plugins, check a backend on this machine, create a new plugin."""


@command.command("list", epilog=example("agentsvc plugins list", "agentsvc plugins list --json"))
@json_option
@config_option
def list_plugins(*, as_json: bool, config_file: Path | None) -> None:
    """List the plugins with their hooks and backends, and the health of configured backends."""
    config = load_config(config_file).config
    host = load_plugins(config)
    health = asyncio.run(_probe(host, config))
    tables = {
        "plugins": (("PLUGIN", "VERSION", "ORIGIN", "HOOKS"), map(_plugin_row, host.plugins())),
        "backend_classes": (("BACKEND CLASS", "PLUGIN", "API VERSION"), _class_rows(host)),
        "backends": (("BACKEND", "HEALTH", "FACTS"), _health_rows(health)),
    }
    if as_json:
        click.echo(json_text({name: to_records(*table) for name, table in tables.items()}))
        return
    for number, table in enumerate(tables.values()):
        if number:
            click.echo()
        print_table(*table, as_json=False)


@command.command(epilog=example("agentsvc plugins check process"))
@click.argument("backend", metavar="BACKEND")
@click.option("--image", metavar="IMAGE", help="Image with python3, if the backend needs one.")
@click.option(
    "--spec",
    metavar="SPEC",
    help="Spec at another agentsvc server, printed by `plugins workload`, for a backend that uses one.",
)
@click.option("--only", metavar="CHECK", multiple=True, help="Run only this check; repeatable.")
@config_option
def check(
    backend: str,
    image: str | None,
    spec: str | None,
    only: tuple[str, ...],
    config_file: Path | None,
) -> None:
    """Run the conformance kit on a configured backend, on this machine.

    Creates and deletes many small sandboxes; takes a minute or two. Sandboxes of servers that use
    this backend are not touched.
    """
    config = load_config(config_file).config
    options = _options(image, spec)
    counts = asyncio.run(_check(load_plugins(config), config, backend, options, _names(only)))
    click.echo(", ".join(f"{counts[outcome]} {outcome}" for outcome in CheckStatus))
    if counts[CheckStatus.FAILED]:
        raise CommandFailed(f"the backend `{backend}` does not fulfil the contract")


@command.command(epilog=example("agentsvc plugins workload"))
@click.option("--image", metavar="IMAGE", help="Image with python3, if the backend needs one.")
def workload(image: str | None) -> None:
    """Print a spec with the workload of the checks, for the config of another agentsvc server.

    It uses that server's default backend. `plugins check NAME --spec kit` then checks the backend
    here that runs its sandboxes at that server.
    """
    python = "python3" if image else "{python}"
    env = {"KIT_PORT": "{port.web}", **(_EVERYWHERE if image else {})}
    named = {"image": image} if image else {}
    command = [python, "-I", "-c", WORKLOAD]
    click.echo(f"[specs.{_KIT_SPEC}]")
    spec = {**named, "command": command, "env": env, "ports": [{"name": _WEB.name}]}
    for name, value in spec.items():
        click.echo(f"{name} = {to_toml(value)}")


@command.command("new", epilog=example("agentsvc plugins new mine --directory agentsvc-mine"))
@click.argument("name", metavar="NAME")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to create; default: agentsvc-NAME in the current directory.",
)
def make_new(name: str, directory: Path | None) -> None:
    """Create a package with a working backend, as a starting point.

    It contains a backend, its configuration, its entry point and the conformance kit as its test.
    """
    target = directory or Path(f"agentsvc-{name.replace('_', '-')}")
    try:
        files = skeleton.files(name)
        target.mkdir(parents=True)
        for path, text in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except ValueError as exc:
        raise CommandFailed(str(exc), "choose lower-case letters, digits and _") from exc
    except FileExistsError as exc:
        raise CommandFailed(f"{target} exists already", "choose another with --directory") from exc
    except OSError as exc:
        raise CommandFailed(f"{target} cannot be created: {exc.strerror}") from exc
    click.echo(target)
    click.echo(f"hint: cd {target} && pip install -e '.[dev]' && pytest", err=True)


def load_plugins(config: Config) -> PluginHost:
    """Load all plugins that the configuration does not disable."""
    dirs = [Path(directory) for directory in config.plugins.dirs]
    return PluginHost.load(dirs=dirs, disable=config.plugins.disable)


async def _probe(host: PluginHost, config: Config) -> dict[str, Health]:
    async with opened(host, config) as registry:
        return await registry.probe()


async def _check(
    host: PluginHost, config: Config, name: str, options: KitOptions, only: frozenset[str]
) -> Counter[CheckStatus]:
    async with opened(host, config) as registry:
        if name not in registry.names():
            raise CommandFailed(
                f"there is no backend `{name}`", f"choose one of: {', '.join(registry.names())}"
            )
        backend = registry.get(name)
        _check_orders(backend, options)
    counts: Counter[CheckStatus] = Counter()
    async for result in check_backend(type(backend), backend.config, options, only=only):
        counts[result.outcome] += 1
        reason = f": {result.reason}" if result.reason else ""
        click.echo(f"{result.outcome:<8}{result.name.replace('_', ' ')}{reason}")
    return counts


def _options(image: str | None, spec: str | None) -> KitOptions:
    if spec is not None:
        fields = {"image": spec, "command": None, "ports": (_WEB,), "env": {"KIT_PORT": "its own"}}
        return KitOptions(order_overrides=fields, beacon_host="")
    if image is None:
        return KitOptions()
    # A sandbox with an image has its own network: its loopback is not this machine's.
    return KitOptions(order_overrides={"image": image, "env": _EVERYWHERE}, beacon_host="")


def _names(words: Iterable[str]) -> frozenset[str]:
    """Return the names of checks given in words; raises CommandFailed for an unknown one."""
    names = frozenset(text.strip().replace(" ", "_") for text in words)
    if wrong := names - {check.name for check in CHECKS}:
        raise CommandFailed(f"there is no check `{min(wrong)}`", "`plugins check` prints the names")
    return names


def _check_orders(backend: Backend, options: KitOptions) -> None:
    """Raise CommandFailed if the backend would reject every order of the kit."""
    asked: dict[str, Any] = {"command": ("python3", "-c", WORKLOAD), "ports": (_WEB,)}
    asked |= {name: value for name, value in options.order_overrides.items() if name != "env"}
    try:
        backend.check_spec(Spec(id="kit", backend=backend.name, **asked))
    except OrderRejected as exc:
        raise CommandFailed(
            f"the backend rejects the workload of the checks: {exc.message}",
            "pass an image with --image, or for a backend at another agentsvc server the spec that"
            " `agentsvc plugins workload` prints, with --spec",
        ) from exc


@asynccontextmanager
async def opened(
    host: PluginHost, config: Config, *, within: Path | None = None
) -> AsyncIterator[BackendRegistry]:
    """Open the configured backends, without touching the sandboxes of a server that uses them.

    They get a temporary state directory, created in `within` if given, and a new instance id.
    """
    with tempfile.TemporaryDirectory(prefix="agentsvc-plugins-", dir=within) as folder:
        registry = BackendRegistry.build(host, config, instance_id=new_id(), state_dir=Path(folder))
        try:
            await registry.open()
            yield registry
        finally:
            await registry.close()


def _plugin_row(plugin: Plugin) -> tuple[str, ...]:
    hooks = ", ".join(hook.removeprefix("agentsvc_") for hook in plugin.hooks)
    version = __version__ if plugin.origin == BUILT_IN else plugin.version
    return (plugin.name, version or "-", plugin.origin, hooks or "-")


def _class_rows(host: PluginHost) -> Iterator[tuple[str, ...]]:
    for plugin in host.plugins():
        for kind in plugin.backends:
            fits = kind.api_version == API_VERSION
            note = "" if fits else f" (incompatible, this server has {API_VERSION})"
            yield (kind.name, plugin.name, f"{kind.api_version}{note}")


def _health_rows(found: Mapping[str, Health]) -> Iterator[tuple[str, ...]]:
    for name, health in found.items():
        facts = ", ".join(f"{key}={value}" for key, value in health.facts.items())
        yield (name, "ok" if health.ok else f"not usable: {health.reason}", facts or "-")
