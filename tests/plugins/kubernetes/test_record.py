"""The suite on a real Kubernetes, which runs apart, has run with the plugin as it is."""

from tests.live.kube import record


def test_the_suite_on_a_real_kubernetes_has_run_with_this_plugin() -> None:
    assert record.last_plugin() == record.digest(), (
        f"plugins/kubernetes has changed since its suite last ran, at {record.last_time()};"
        " run `poe live-kubernetes`, and commit what it writes"
    )
