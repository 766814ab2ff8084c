"""What the docker backend asks an engine to make of an order."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.base.errors import OrderRejected
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin.backend import Isolation, Limits, Network, Order, Port
from tests.plugin_loading import part

if TYPE_CHECKING:
    from docker import fence_program, gateways, making, names, plan, settings
else:
    gateways, making, names = part("docker.gateways"), part("docker.making"), part("docker.names")
    plan, settings = part("docker.plan"), part("docker.settings")
    fence_program = part("docker.fence_program")

CONFIG = settings.DockerConfig()
IMAGE = plan.ImageInfo(id="sha256:1", entrypoint=("serve",), command=("--default",))
PLACE = plan.Placement(network="inner", address="10.213.0.3", publish="127.0.0.1")
HERE = new_id()


def make_order(**changes: Any) -> Order:
    order = Order(
        sandbox_id=new_id(),
        image="example.org/agent:1",
        ports=(Port(name="agent"), Port(name="web", number=8000), Port(name="other")),
    )
    return msgspec.structs.replace(order, **changes)


def body_of(
    order: Order, image: plan.ImageInfo = IMAGE, config: settings.DockerConfig = CONFIG
) -> dict[str, Any]:
    return plan.container(order, image, config, place=PLACE, has_init=True, instance_id=HERE)


def test_a_container_has_no_privileges_and_an_init() -> None:
    host = body_of(make_order())["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Init"] is True
    assert host["Privileged"] is False
    assert {"Binds", "CapAdd", "Devices", "PidMode", "UsernsMode"}.isdisjoint(host)


def test_its_user_is_never_root_unless_that_is_asked_for() -> None:
    for own, used in (("", "1000:1000"), ("root", "1000:1000"), ("0:0", "1000:1000")):
        assert body_of(make_order(), msgspec.structs.replace(IMAGE, user=own))["User"] == used
    named = msgspec.structs.replace(IMAGE, user="openhands")
    assert body_of(make_order(), named)["User"] == "openhands"
    assert body_of(make_order(options={"user": "0"}), named)["User"] == "0"
    assert body_of(make_order(), named, settings.DockerConfig(user="7:8"))["User"] == "7:8"


def test_the_command_stands_behind_the_images_entry() -> None:
    assert body_of(make_order())["Cmd"] == ["serve", "--default"]
    ordered = body_of(make_order(command=("--port", "{port.other}")))
    assert ordered["Cmd"] == ["serve", "--port", "8101"]
    with pytest.raises(OrderRejected, match="has no command"):
        body_of(make_order(), plan.ImageInfo(id="sha256:2"))


def test_secrets_are_in_an_archive_and_nowhere_in_the_request() -> None:
    order = make_order(secret_env={"KEY": Secret("it's a $word\nof two lines")})
    assert "word" not in str(body_of(order))
    with tarfile.open(fileobj=io.BytesIO(plan.private_archive(order.secret_env, b"fence"))) as tar:
        file = tar.extractfile("env")
        assert file is not None
        assert file.read() == b"export KEY='it'\"'\"'s a $word\nof two lines'\n"
        fence = tar.extractfile("fence.py")
        assert fence is not None
        assert fence.read() == b"fence"
    with pytest.raises(OrderRejected, match="name of a variable"):
        plan.check(make_order(secret_env={"A;B": Secret("x")}), CONFIG)


def test_published_ports_are_bound_to_the_address_alone() -> None:
    bound = body_of(make_order())["HostConfig"]["PortBindings"]
    assert bound["8000/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": ""}]
    assert plan.bindings({"agent": 8000}, "") == {}


def test_limits_are_the_engines_own() -> None:
    limits = Limits(cpus=1.5, memory_bytes=2**30, pids=50, open_files=100)
    host = body_of(make_order(limits=limits))["HostConfig"]
    assert host["NanoCpus"] == 1_500_000_000
    assert host["Memory"] == host["MemorySwap"] == 2**30
    assert host["PidsLimit"] == 50
    assert host["Ulimits"] == [{"Name": "nofile", "Soft": 100, "Hard": 100}]


def test_a_read_only_sandbox_can_write_to_its_workspace_and_tmp() -> None:
    body = body_of(make_order(options={"read_only": True, "tmpfs": {"/cache": "size=1m"}}))
    assert body["HostConfig"]["ReadonlyRootfs"] is True
    assert set(body["HostConfig"]["Tmpfs"]) == {"/tmp", "/cache"}  # noqa: S108  # in a container
    assert "HOME=/workspace/.home" in body["Env"]


def test_volumes_are_the_sandboxs_own_and_labelled_like_it() -> None:
    order = make_order()
    body = body_of(order)
    sources = [mount["Source"] for mount in body["HostConfig"]["Mounts"]]
    assert sources == [names.workspace(order.sandbox_id), names.private(order.sandbox_id)]
    assert names.is_own(body["Labels"], HERE, order.sandbox_id)
    assert not names.is_own(body["Labels"], new_id(), order.sandbox_id)
    assert names.container(order.sandbox_id) == f"oh-agent-server-{order.sandbox_id}"


@pytest.mark.parametrize(
    "source",
    [
        "/data2",
        "/data/../etc",
        "/",
        "/var/run/docker.sock",
        "/data/docker.sock",
        "/run",
        "/run/user/1000/podman/podman.sock",
        "/var/lib/docker/volumes",
        "relative",
        "/da:ta",
    ],
)
def test_only_what_is_allowed_is_mounted_and_never_the_engines_socket(source: str) -> None:
    config = settings.DockerConfig(bind_mounts=("/data", "/run", "/var"))
    options = {"mounts": [{"source": source, "target": "/mnt/x"}]}
    with pytest.raises(OrderRejected):
        plan.check(make_order(options=options), config)


def test_a_link_in_an_allowed_directory_leads_to_another_one_at_most(tmp_path: Path) -> None:
    for name in ("allowed", "other", "foreign"):
        (tmp_path / name).mkdir()
        (tmp_path / "allowed" / name).symlink_to(tmp_path / name)
    allowed = [str(tmp_path / name) for name in ("allowed", "other")]

    def check(source: Path) -> None:
        making.check_links([plan.Mount(source=str(source), target="/mnt/x")], allowed)

    check(tmp_path / "allowed" / "other")
    check(tmp_path / "allowed" / "not there")
    for source in (tmp_path / "allowed" / "foreign", tmp_path / "allowed" / "foreign" / "below"):
        with pytest.raises(OrderRejected, match="leads out"):
            check(source)


def test_an_allowed_directory_is_mounted_read_only_unless_it_is_said_to_be_writable() -> None:
    config = settings.DockerConfig(bind_mounts=("/data/",))
    options = {
        "mounts": [
            {"source": "/data/a", "target": "/mnt/a"},
            {"source": "/data/b/../c", "target": "/mnt/b", "writable": True},
        ]
    }
    order = make_order(options=options)
    plan.check(order, config)
    mounts = body_of(order, config=config)["HostConfig"]["Mounts"][2:]
    assert [(one["Source"], one["ReadOnly"]) for one in mounts] == [
        ("/data/a", True),
        ("/data/c", False),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"image": ""},
        {"sandbox_id": "../../x"},
        {"working_dir": "/etc"},
        {"working_dir": "../up"},
        {"options": {"no_such": 1}},
        {"options": {"user": "root; rm"}},
        {"options": {"tmpfs": {"/run/agentsvc": ""}}},
        {"options": {"privileged": True}},
        {"command": ("{port.absent}",)},
    ],
)
def test_what_could_never_be_made_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OrderRejected):
        plan.check(make_order(**changes), CONFIG)


def test_a_proxy_is_told_in_both_spellings_and_the_spec_wins() -> None:
    place = msgspec.structs.replace(PLACE, proxy_url="http://10.213.0.2:3128")
    env = plan.environment_of(make_order(env={"NO_PROXY": "mine"}), {}, place)
    assert env["HTTPS_PROXY"] == env["https_proxy"] == "http://10.213.0.2:3128"
    assert "agentsvc.internal" in env["no_proxy"]
    assert env["NO_PROXY"] == "mine"


def test_a_gateway_carries_ports_in_reports_out_and_the_rest_by_list() -> None:
    order = make_order(
        network=Network.ALLOWLIST,
        allow_hosts=("*.example.org",),
        reaches=("api.example:443",),
        models=("model.example:443",),
    )
    body = gateways.body(
        order,
        "sha256:1",
        networks=("outer", "inner"),
        addresses=("10.0.0.2", "10.0.1.2", "10.0.1.3"),
        publish="",
        callback=("agentsvc.internal", 3000),
        hosts=(),
        has_init=True,
        instance_id=HERE,
    )
    given = " ".join(body["Cmd"])
    assert "--host 10.0.1.2 --port 3128" in given
    assert "--relay 10.0.0.2 8000 10.0.1.3 8000" in given
    assert "--relay 10.0.1.2 3000 agentsvc.internal 3000" in given
    assert body["User"] == "65534:65534"
    with tarfile.open(fileobj=io.BytesIO(gateways.archive(order))) as tar:
        file = tar.extractfile(body["Cmd"][1].lstrip("/"))
        assert file is not None
        policy = msgspec.json.decode(file.read())
    assert policy == {
        "mode": "allowlist",
        "allow_hosts": ["*.example.org"],
        "needed": [["api.example", 443]],
        "models": [["model.example", 443]],
    }


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://agentsvc.internal:3000/api/v1/webhooks", ("agentsvc.internal", 3000)),
        ("https://agents.example/x", ("agents.example", 443)),
        ("http://agents.example", ("agents.example", 80)),
        ("", None),
    ],
)
def test_where_a_sandbox_reports_is_read_from_its_order(
    url: str, target: tuple[str, int] | None
) -> None:
    assert plan.callback_of({"OH_WEBHOOKS_0_BASE_URL": url}) == target


@pytest.mark.parametrize(
    ("user", "passwd", "found"),
    [
        ("1000", "", (1000, 1000)),
        ("1000:5", "", (1000, 5)),
        ("agent", "root:x:0:0::/:/bin/sh\nagent:x:7:8::/:/bin/sh\n", (7, 8)),
        ("agent", "root:x:0:0::/:/bin/sh", None),
    ],
)
def test_the_numbers_of_a_user(user: str, passwd: str, found: tuple[int, int] | None) -> None:
    assert plan.parse_user(user, passwd) == found


@pytest.mark.parametrize(
    ("runtime", "isolation"),
    [
        ("", Isolation.CONTAINER),
        ("runc", Isolation.CONTAINER),
        ("runsc", Isolation.GVISOR),
        ("runsc-kvm", Isolation.GVISOR),
        ("io.containerd.kata.v2", Isolation.VM),
    ],
)
def test_a_runtime_says_how_far_it_isolates(runtime: str, isolation: Isolation) -> None:
    assert plan.isolation_of(runtime) is isolation


RING = """
import ctypes, errno, sys
ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(256))
print(ctypes.get_errno() == errno.ENOSYS, sys.argv[1:])
"""


def test_what_the_fence_runs_has_no_rings_and_its_own_arguments() -> None:
    program = [sys.executable, "-I", "-S", fence_program.__file__]
    command = [sys.executable, "-c", RING, "a b", "--c"]
    done = subprocess.run([*program, *command], capture_output=True, text=True, check=True)
    assert done.stdout == "True ['a b', '--c']\n"
    absent = subprocess.run(
        [*program, "no-such-command"], capture_output=True, text=True, check=False
    )
    assert (absent.returncode, absent.stderr) == (127, "no-such-command: not found\n")
    barred = subprocess.run([*program, "/"], capture_output=True, check=False)
    assert barred.returncode == 126


def test_a_user_whose_numbers_are_none_is_not_found_in_an_image() -> None:
    assert plan.parse_user("agent", "agent:x:many:1::/:/bin/sh\n") is None
    assert plan.parse_user("agent", "agent:x:1:\u00b2::/:/bin/sh\n") is None
    assert plan.parse_user("\u00b2") is None
    assert plan.parse_user("7:\u00b2") == (7, 7)
    assert plan.parse_user("agent", "agent:x:many:1::/\nagent:x:5:6::/\n") == (5, 6)
