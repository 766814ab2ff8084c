"""Builds Kubernetes of the source package that Debian 12 has, once for each recipe.

Its programs stay in a cache of the user's, or in the directory that TEST_KUBERNETES_CACHE names.
Only they do: sources and what the compiler keeps, 2.3 GB, go when they are built.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.live import engines
from tests.live.engines import EngineFailed

CACHE: Final = "TEST_KUBERNETES_CACHE"
VERSION: Final = "1.20.2"

PAUSE: Final = "pause"
"""What holds the network of a pod; the only thing in its image."""
SERVICES: Final = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)

_PACKAGE: Final = "1.20.5+really1.20.2-1.1+deb12u1"
_RECIPE: Final = 2
"""Another number has everything built anew."""
_GO: Final = Path("/usr/lib/go-1.19")
_NEWER_REFLECT: Final = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
_NEEDED: Final = {
    "etcd": "etcd-server",
    "socat": "socat",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "dockerd": "docker.io",
}
_COMPILERS: Final = {
    _GO: "golang-1.19-go",
    _NEWER_REFLECT: "golang-github-modern-go-reflect2-dev",
}
_OPENAPI: Final = "k8s.io/kubernetes/pkg/generated/openapi"
_PAUSE_SOURCE: Final = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
"""


def programs() -> Path:
    """Return the directory of the programs, which are built if they are not there.

    Raises EngineFailed where that cannot be done.
    """
    place = _cache() / f"kubernetes-{VERSION}-{_RECIPE}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with engines.one_at_a_time(place, "build"):
        if not place.exists():
            _install([name for program, name in _NEEDED.items() if not engines.which(program)])
            _build(place)
    return place


def are_built() -> bool:
    """Say whether the programs are there already."""
    return (_cache() / f"kubernetes-{VERSION}-{_RECIPE}").exists()


def _cache() -> Path:
    told = os.environ.get(CACHE)
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentsvc-tests"


def _build(place: Path) -> None:
    _install([name for path, name in _COMPILERS.items() if not path.exists()])
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="build-") as made:
        work = Path(made)
        sources = work / "go/src/k8s.io/kubernetes"
        sources.mkdir(parents=True)
        _run("tar", "-xzf", str(_download(work)), "--strip-components=1", "-C", str(sources))
        _prepare(sources)
        compiler = _Compiler(work, sources)
        _generate(compiler, work, sources)
        done = work / "programs"
        for name in SERVICES:
            compiler.build(f"k8s.io/kubernetes/cmd/{name}", done / name)
        pause = sources / "cmd/tests-pause"
        pause.mkdir()
        (pause / "main.go").write_text(_PAUSE_SOURCE)
        compiler.build("k8s.io/kubernetes/cmd/tests-pause", done / PAUSE)
        done.rename(place)


def _install(packages: Sequence[str]) -> None:
    if not packages:
        return
    if os.geteuid() != 0:
        raise EngineFailed(f"these packages are missing: {', '.join(packages)}")
    # At runlevel 1 a package does not start its service.
    calm = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    _run("apt-get", "update", "-q", env=calm)
    _run("apt-get", "install", "-q", "-y", "--no-install-recommends", *packages, env=calm)


def _download(work: Path) -> Path:
    """Return the archive of the sources, which apt has found to be Debian's own."""
    (work / "lists/partial").mkdir(parents=True)
    listed = work / "sources.list"
    listed.write_text(f"deb-src {engines.debian_mirror()} bookworm main\n")
    options = (
        *("-o", f"Dir::Etc::sourcelist={listed}", "-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::lists={work}/lists", "-o", "APT::Sandbox::User=root", "-q"),
    )
    _run("apt-get", *options, "update")
    package = f"kubernetes={_PACKAGE}"
    _run("apt-get", *options, "source", "--download-only", "--only-source", package, cwd=work)
    [archive] = work.glob("kubernetes_*.orig.tar.gz")
    return archive


def _prepare(sources: Path) -> None:
    numbers = VERSION.split(".")
    stamps = {"gitMajor": numbers[0], "gitMinor": numbers[1], "gitVersion": f"v{VERSION}"}
    for module in ("component-base", "client-go/pkg"):
        file = sources / f"staging/src/k8s.io/{module}/version/base.go"
        for name, text in stamps.items():
            _replace(file, rf"(?m)^(\s+{name})\s+(string|=).*$", rf'\1 string = "{text}"')
    # The API knows a pod until the leftovers of its containers are collected, once a minute.
    _replace(
        sources / "pkg/kubelet/kubelet.go", "(ContainerGCPeriod = )time.Minute", r"\1time.Second"
    )
    # What comes with the sources reads the inside of an older Go and crashes in this one.
    older = sources / "vendor/github.com/modern-go/reflect2"
    for file in older.iterdir():
        if file.suffix in (".go", ".s"):
            file.unlink()
    for file in _NEWER_REFLECT.iterdir():
        if file.suffix in (".go", ".s"):
            shutil.copy(file, older)


def _replace(file: Path, pattern: str, text: str) -> None:
    changed, times = re.subn(pattern, text, file.read_text())
    if times == 0:
        raise EngineFailed(f"{file.name} does not have what is to be changed: {pattern}")
    file.write_text(changed)


def _generate(compiler: "_Compiler", work: Path, sources: Path) -> None:
    """Make the one generated file that the source package lacks."""
    if (sources / "pkg/generated/openapi/zz_generated.openapi.go").exists():
        return
    generator = work / "openapi-gen"
    compiler.build("k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator)
    packages = {
        f"k8s.io/kubernetes/{file.parent.relative_to(sources)}"
        for top in ("vendor/k8s.io", "pkg")
        for file in _go_files(sources / top)
        if "+k8s:openapi-gen=" in file.read_text()
    }
    compiler.run(
        *(str(generator), "--input-dirs", ",".join(sorted(packages))),
        *("--output-package", _OPENAPI, "--output-file-base", "zz_generated.openapi"),
        *("--go-header-file", "hack/boilerplate/boilerplate.generatego.txt"),
        *("--report-filename", str(work / "report")),
    )


def _go_files(top: Path) -> list[Path]:
    found = []
    # Most of what is vendored are links to what is staged, which have to be followed.
    for directory, _, names in os.walk(top, followlinks=True):
        skipped = ("sample", "code-generator", "kube-openapi/cmd", "kube-openapi/test")
        if any(one in directory for one in skipped):
            continue
        found += [
            Path(directory, name)
            for name in names
            if name.endswith(".go") and not name.endswith("_test.go")
        ]
    return found


class _Compiler:
    """Debian's Go, on sources that have all they need with them."""

    def __init__(self, work: Path, sources: Path) -> None:
        self._sources = sources
        self._environment = {
            **os.environ,
            "CGO_ENABLED": "0",
            "GO111MODULE": "off",
            "GOCACHE": str(work / "compiled"),
            "GOFLAGS": "",
            "GOPATH": str(work / "go"),
            "GOROOT": str(_GO),
            "GOTMPDIR": str(work),
            "PATH": f"{_GO}/bin:{os.environ.get('PATH', os.defpath)}",
        }

    def build(self, package: str, program: Path) -> None:
        self.run("go", "build", "-ldflags", "-s -w", "-o", str(program), package)

    def run(self, *command: str) -> None:
        _run(*command, cwd=self._sources, env=self._environment)


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-2000:]
        raise EngineFailed(f"`{' '.join(command)[:200]}` ended with {done.returncode}: {said}")
