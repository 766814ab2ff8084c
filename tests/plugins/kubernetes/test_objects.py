"""What the kubernetes backend asks a cluster to make of an order."""

import copy
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.base.errors import OrderRejected, StartFailed
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin.backend import Isolation, Limits, Network, Order, Port
from tests.kube.standard import breaches
from tests.plugin_loading import part

if TYPE_CHECKING:
    from kubernetes import checkpoints, gateways, names, objects, plan, settings
else:
    checkpoints = part("kubernetes.checkpoints")
    gateways, names = part("kubernetes.gateways"), part("kubernetes.names")
    objects, plan = part("kubernetes.objects"), part("kubernetes.plan")
    settings = part("kubernetes.settings")

type Json = dict[str, Any]

HERE = new_id()
CONFIG = settings.KubernetesConfig()
OWNER = {"metadata": {"name": "claim", "uid": "uid-of-the-claim"}}
FULL = settings.KubernetesConfig(
    service_account="agents",
    image_pull_secrets=("registry",),
    image_pull_policy="Always",
    node_selector={"pool": "agents"},
    tolerations=(settings.Toleration(key="agents", operator="Exists", effect="NoSchedule"),),
    runtime_class="gvisor",
    priority_class="low",
    user="2000:3000",
    storage_class="fast",
    node_lost_seconds=60,
    stop_seconds=9,
    server_labels={"app": "agentsvc"},
    server_cidrs=("10.0.0.7/32",),
    closed_cidrs=("169.254.0.0/16", "10.0.0.0/8", "fe80::/10"),
)


def make_order(**changes: Any) -> Order:
    order = Order(
        sandbox_id=new_id(),
        image="example.org/agent:1",
        ports=(Port(name="agent"), Port(name="web", number=8000, awaited=False)),
    )
    return msgspec.structs.replace(order, **changes)


def place_of(config: Any = CONFIG, **changes: Any) -> Any:
    return objects.PodContext(instance_id=HERE, namespace="agents", config=config, **changes)


def pod_of(order: Order, config: Any = CONFIG) -> Json:
    found: Json = objects.pod(order, place_of(config))
    return found


def container_of(order: Order, config: Any = CONFIG) -> Json:
    [found] = pod_of(order, config)["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("options", [{}, {"read_only": True, "user": "7:8"}], ids=["open", "tight"])
def test_pods_keep_the_restricted_standard(config: Any, options: Json) -> None:
    order = make_order(options=options, network=Network.NONE, secret_env={"KEY": Secret("x")})
    assert breaches(pod_of(order, config)) == []
    assert breaches(gateways.pod(order, place_of(config), gateways.sources())) == []


@pytest.mark.parametrize(
    ("where", "what", "breach"),
    [
        ((), {"hostNetwork": True}, "hostNetwork"),
        (("volumes", 0), {"hostPath": {"path": "/"}}, "volume workspace"),
        (("securityContext",), {"runAsUser": 0}, "runAsUser 0"),
        (("containers", 0, "securityContext"), {"privileged": True}, "sandbox: privileged"),
        (("containers", 0, "securityContext"), {"runAsNonRoot": False}, "runAsNonRoot"),
        (("containers", 0, "securityContext"), {"allowPrivilegeEscalation": True}, "Escalation"),
        (("containers", 0, "securityContext"), {"capabilities": {}}, "not dropped"),
        (("containers", 0, "securityContext"), {"seccompProfile": {}}, "seccompProfile"),
        (("initContainers", 0, "securityContext"), {"procMount": "Unmasked"}, "procMount"),
        (("containers", 0, "ports", 0), {"hostPort": 80}, "hostPort"),
    ],
)
def test_the_standards_check_notices(where: tuple[Any, ...], what: Json, breach: str) -> None:
    pod = copy.deepcopy(pod_of(make_order()))
    part_of: Any = pod["spec"]
    for step in where:
        part_of = part_of[step]
    part_of.update(what)
    assert [breach in one for one in breaches(pod)] == [True]


def test_everything_carries_the_installation_and_goes_with_the_claim() -> None:
    order, place = make_order(network=Network.ALLOWLIST), place_of()
    claim = objects.claim(order, place)
    owned = [
        objects.secret(order, place, OWNER),
        objects.service(order, place, OWNER),
        objects.policy(order, place, OWNER),
        objects.owned(objects.pod(order, place), OWNER),
        gateways.program(order, place, OWNER, {}),
        checkpoints.program(order, place, OWNER, {}),
        gateways.service(order, place, OWNER),
        gateways.policy(order, place, OWNER),
    ]
    for one in (claim, *owned):
        assert names.is_own(one, HERE, order.sandbox_id)
        assert one["metadata"]["namespace"] == "agents"
        assert {"apiVersion", "kind", "metadata"} <= one.keys()
        assert len(one["metadata"]["name"]) <= 63
    for one in owned:
        [reference] = one["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["uid"]) == (
            "PersistentVolumeClaim",
            OWNER["metadata"]["uid"],
        )
    assert "ownerReferences" not in claim["metadata"]


def test_secrets_are_in_the_secret_and_nowhere_in_the_pod() -> None:
    order = make_order(
        env={"PLAIN": "costs $(KEY) or $1", "KEY": "overruled"},
        secret_env={"KEY": Secret("whisper'd $x")},
    )
    pod = pod_of(order)
    assert "whisper" not in json.dumps(pod)
    assert objects.secret(order, place_of(), OWNER)["stringData"] == {"KEY": "whisper'd $x"}
    plain, secret = container_of(order)["env"]
    # `$$` is how the kubelet is told of one that stands for itself.
    assert plain == {"name": "PLAIN", "value": "costs $$(KEY) or $$1"}
    assert secret["valueFrom"]["secretKeyRef"] == {"name": pod["metadata"]["name"], "key": "KEY"}


def test_the_command_stands_behind_the_images_entry() -> None:
    assert "args" not in container_of(make_order())
    ordered = container_of(make_order(command=("--port", "{port.agent}", "$(X)")))
    assert ordered["args"] == ["--port", "8100", "$$(X)"]
    assert "command" not in ordered


def test_the_table_reaches_the_pod_and_the_spec_goes_further() -> None:
    spec = pod_of(make_order(), FULL)["spec"]
    assert spec["serviceAccountName"] == "agents"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"pool": "agents"}
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["priorityClassName"] == "low"
    assert spec["terminationGracePeriodSeconds"] == 9
    assert spec["automountServiceAccountToken"] is False
    assert spec["tolerations"][0] == {"key": "agents", "operator": "Exists", "effect": "NoSchedule"}
    lost = [one for one in spec["tolerations"] if one.get("effect") == "NoExecute"]
    assert [one["tolerationSeconds"] for one in lost] == [60, 60]
    context = spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (2000, 3000, 3000)
    options = {
        "service_account": "one",
        "image_pull_secrets": ["other", "registry"],
        "node_selector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "value": "yes"}],
        "runtime_class": "kata",
        "user": "5000",
    }
    own = pod_of(make_order(options=options), FULL)["spec"]
    assert own["serviceAccountName"] == "one"
    assert own["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert own["nodeSelector"] == {"pool": "agents", "disk": "fast"}
    assert own["tolerations"][1] == {"key": "gpu", "operator": "Equal", "value": "yes"}
    assert own["runtimeClassName"] == "kata"
    assert own["securityContext"]["runAsGroup"] == 5000
    plain = pod_of(make_order())["spec"]
    assert plain.keys().isdisjoint({"serviceAccountName", "runtimeClassName", "nodeSelector"})


def test_limits_are_the_pods_and_what_is_set_aside_is_never_more() -> None:
    limits = Limits(cpus=0.05, memory_bytes=2**30, disk_bytes=5 * 2**30)
    order = make_order(limits=limits, options={"memory_request": "2Gi"})
    assert container_of(order)["resources"] == {
        "requests": {"cpu": "50m", "memory": str(2**30)},
        "limits": {"cpu": "50m", "memory": str(2**30)},
    }
    claim = objects.claim(order, place_of(FULL))["spec"]
    assert claim["resources"] == {"requests": {"storage": str(5 * 2**30)}}
    assert claim["storageClassName"] == "fast"
    plain = objects.claim(make_order(), place_of())["spec"]
    assert plain["resources"] == {"requests": {"storage": "10Gi"}}
    assert "storageClassName" not in plain
    assert container_of(make_order())["resources"] == {
        "requests": {"cpu": "100m", "memory": "256Mi"}
    }


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("100m", 0.1), ("2", 2), ("1.5", 1.5), ("1k", 1000), ("2Ki", 2048), ("3Gi", 3 * 2**30)],
)
def test_a_quantity_is_a_number(quantity: str, number: float) -> None:
    assert plan.amount(quantity) == pytest.approx(number)


def test_nothing_connects_to_a_sandbox_but_the_server() -> None:
    policy = objects.policy(make_order(), place_of(FULL), OWNER)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    [rule] = policy["ingress"]
    assert rule["from"] == [
        {"ipBlock": {"cidr": "10.0.0.7/32"}},
        {"podSelector": {"matchLabels": {"app": "agentsvc"}}, "namespaceSelector": {}},
    ]
    assert [port["port"] for port in rule["ports"]] == [8000, 8100]
    assert objects.policy(make_order(), place_of(), OWNER)["spec"]["ingress"] == []


def test_an_open_sandbox_reaches_all_but_the_closed_addresses() -> None:
    policy = objects.policy(make_order(), place_of(FULL), OWNER)["spec"]
    names_rule, rule = policy["egress"]
    assert {port["port"] for port in names_rule["ports"]} == {53}
    assert names_rule["to"][0] == {"namespaceSelector": {}}
    server, *others = rule["to"]
    assert server == {
        "podSelector": {"matchLabels": {"app": "agentsvc"}},
        "namespaceSelector": {},
    }
    blocks = [one["ipBlock"] for one in others]
    assert blocks == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16", "10.0.0.0/8"]},
        {"cidr": "::/0", "except": ["fe80::/10"]},
    ]


@pytest.mark.parametrize("network", [Network.NONE, Network.ALLOWLIST])
def test_a_fenced_sandbox_reaches_its_gateway_only(network: Network) -> None:
    allow = ("example.org",) if network is Network.ALLOWLIST else ()
    order = make_order(
        network=network,
        allow_hosts=allow,
        env={"OH_WEBHOOKS_0_BASE_URL": "https://agents.example/api", "PLAIN": "1"},
        reaches=("llm.example:443",),
        models=("own.example:8443",),
    )
    [rule] = objects.policy(order, place_of(), OWNER)["spec"]["egress"]
    [to] = rule["to"]
    gateway = gateways.pod(order, place_of(), ["proxy.py"])
    assert to["podSelector"]["matchLabels"].items() <= gateway["metadata"]["labels"].items()
    assert rule["ports"] == [{"protocol": "TCP", "port": 3128}]
    # Where a namespace lets nothing out by itself, its proxy has to be let out.
    outside = gateways.policy(order, place_of(), OWNER)["spec"]
    assert outside["policyTypes"] == ["Ingress", "Egress"]
    assert outside["egress"] == objects.policy(make_order(), place_of(), OWNER)["spec"]["egress"]
    program = gateways.program(order, place_of(), OWNER, {"proxy.py": "text"})["data"]
    assert json.loads(program["policy.json"]) == {
        "mode": network,
        "allow_hosts": list(allow),
        "needed": [["llm.example", 443], ["agents.example", 443]],
        "models": [["own.example", 8443]],
    }
    [volume] = gateway["spec"]["volumes"]
    assert {item["path"] for item in volume["configMap"]["items"]} == {
        "agentsvc/egress/proxy.py",
        "agentsvc/__init__.py",
        "policy.json",
    }
    assert {item["key"] for item in volume["configMap"]["items"]} == program.keys()
    url = gateways.url_of({"spec": {"clusterIP": "10.96.3.4"}})
    env = {
        one["name"]: one["value"]
        for one in objects.pod(order, place_of(proxy_url=url))["spec"]["containers"][0]["env"]
    }
    assert env["https_proxy"] == env["HTTPS_PROXY"] == "http://10.96.3.4:3128"
    assert "agents.example" not in env["NO_PROXY"]
    assert gateways.url_of({"spec": {"clusterIP": "fd00::1"}}) == "http://[fd00::1]:3128"


def test_a_pod_remembers_what_a_report_needs() -> None:
    pod = pod_of(make_order(limits=Limits(cpus=1.0), working_dir="project"))
    told = names.annotations_of(pod)
    assert told == {
        "agentsvc/ports": "web=8000,agent=8100",
        "agentsvc/awaited": "agent",
        "agentsvc/workdir": "/workspace/project",
        "agentsvc/limits": "cpus",
        "agentsvc/callback": "no",
    }
    assert container_of(make_order())["readinessProbe"]["tcpSocket"] == {"port": 8100}
    assert "readinessProbe" not in container_of(make_order(ports=()))
    [prepare] = pod["spec"]["initContainers"]
    assert prepare["command"] == ["mkdir", "-p", "/workspace/project", "/workspace/.home"]
    tight = container_of(make_order(options={"read_only": True}))
    assert {"name": "HOME", "value": "/workspace/.home"} in tight["env"]
    assert tight["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": ""}, "needs an image"),
        ({"sandbox_id": "../x"}, "id cannot be"),
        ({"working_dir": "../etc"}, "must be below"),
        ({"command": ("{port.none}",)}, "names a port"),
        ({"env": {"A-B": "1"}}, "name of a variable"),
        ({"secret_env": {"A;B": Secret("1")}}, "name of a variable"),
        ({"env": {"A": "x" * 200_000}}, "environment is larger"),
        ({"secret_env": {"A": Secret("x" * 1_000_000)}}, "secrets are larger"),
        ({"options": {"user": "0"}}, "do not fit"),
        ({"options": {"unknown": 1}}, "do not fit"),
        ({"options": {"node_selector": {"a": "b c"}}}, "cannot be the label"),
        ({"limits": Limits(cpus=0.0001)}, "less than a thousandth"),
        ({"ports": (Port(name="a", number=1), Port(name="b", number=1))}, "Two ports"),
    ],
)
def test_what_could_never_run_is_refused(changes: Json, words: str) -> None:
    with pytest.raises(OrderRejected, match=words):
        plan.check(make_order(**changes))


@pytest.mark.parametrize(
    ("runtime", "isolation"),
    [
        ("", Isolation.CONTAINER),
        ("gvisor", Isolation.GVISOR),
        ("runsc-kvm", Isolation.GVISOR),
        ("kata-qemu", Isolation.VM),
    ],
)
def test_a_runtime_class_says_how_far_pods_are_kept_apart(
    runtime: str, isolation: Isolation
) -> None:
    assert plan.isolation_of(runtime) is isolation


def test_the_way_to_pods_is_known_and_lets_the_server_in() -> None:
    assert settings.way_to_pods(CONFIG, is_inside=True) == "service"
    assert settings.way_to_pods(CONFIG, is_inside=False) == "port-forward"
    settings.check(CONFIG, is_inside=False)
    settings.check(settings.KubernetesConfig(server_labels={"a": "b"}), is_inside=True)
    for config, is_inside in (
        (CONFIG, True),
        (settings.KubernetesConfig(reach="pod"), False),
        (settings.KubernetesConfig(closed_cidrs=("10.0.0.0/99",)), False),
    ):
        with pytest.raises(StartFailed):
            settings.check(config, is_inside=is_inside)
