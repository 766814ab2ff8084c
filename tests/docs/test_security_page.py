"""Each sentence of the security page that promises something names the tests that hold it.

A sentence without an entry fails, and so does an entry without its sentence, or for a test that is not
there. `resilience:ROW` stands for the row of the resilience tests, which the suite runs at a small scale.
"""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.resilience.test_small import SMALL

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "agentsvc" / "SECURITY.md"
PROMISES: Final = (
    "Sandboxes",
    "Network",
    "Keys and logins",
    "Floods",
    "Backups, imports and repositories",
    "Supply chain",
)
_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")

HELD: Final[dict[str, tuple[str, ...]]] = {
    "By default a sandbox is a tree of processes isolated by bubblewrap.": (
        "resilience:containment",
    ),
    "Inside, only its own files, the system without its secrets, read-only, and its own processes are visible.": (
        "resilience:containment",
        "tests/plugins/process/test_isolation.py::test_files_of_the_server_the_user_and_other_sandboxes_do_not_exist_inside",
        "tests/plugins/process/test_isolation.py::test_only_workspace_home_and_temp_can_be_written",
        "tests/plugins/process/test_isolation.py::test_no_process_but_its_own_is_seen_and_none_tells_of_the_server",
    ),
    "A server that runs as root gives each sandbox its own user outside, without capabilities.": (
        "resilience:containment",
        "tests/plugins/process/test_sandbox_users.py::test_each_sandbox_is_somebody_else_and_nobody_is_root",
    ),
    "A system call filter denies creating namespaces, mounts and raw sockets.": (
        "resilience:containment",
        "tests/plugins/process/test_isolation.py::test_dangerous_calls_are_refused_and_ordinary_ones_are_not",
    ),
    "If the default isolation of a backend is not available, the server does not start, and says what to install.": (
        "resilience:containment",
        "tests/sandboxes/test_isolation_floor.py::test_a_server_does_not_start_below_the_level_that_its_backend_is_made_for",
    ),
    "A server that runs as root does not start without bubblewrap, whatever is configured.": (
        "resilience:containment",
        "tests/cli/test_serve.py::test_root_starts_nothing_without_bubblewrap_whatever_is_configured",
    ),
    "A server that runs as an ordinary user starts without it only with a lower `sandboxes.isolation`.": (
        "tests/cli/test_serve.py::test_a_user_without_bubblewrap_is_told_which_line_accepts_it",
    ),
    'The "is ready" line names the isolation level in use.': (
        "tests/cli/test_serve.py::test_a_server_that_is_ready_says_how_sandboxes_are_held",
    ),
    "The fork server, which loads the agent's packages in advance, has no capabilities, and its own mount, network, IPC, UTS and cgroup namespaces before it loads anything.": (
        "resilience:containment",
        "tests/plugins/process/test_zygote_rights.py::test_the_zygote_is_a_user_of_its_own_in_namespaces_of_its_own",
        "tests/plugins/process/test_zygote_rights.py::test_it_gets_nothing_either_from_a_server_that_is_not_root",
    ),
    "If the server runs as root, the fork server has its own user; otherwise it has its own user namespace, and Landlock prevents it from sending signals to other processes.": (
        "tests/plugins/process/test_zygote_rights.py::test_the_zygote_is_a_user_of_its_own_in_namespaces_of_its_own",
        "tests/plugins/process/test_zygote_rights.py::test_it_gets_nothing_either_from_a_server_that_is_not_root",
    ),
    "A malicious package that is loaded there cannot read the server's files, has no network access, and can neither signal nor trace the server.": (
        "tests/plugins/process/test_zygote_rights.py::test_a_package_that_is_hostile_when_it_is_loaded_gets_nothing",
        "tests/plugins/process/test_zygote_rights.py::test_it_gets_nothing_either_from_a_server_that_is_not_root",
    ),
    "If the fork server would run as root, if sandboxes are not isolated by bubblewrap, and if the server is not root and Linux is older than 6.12, there is no fork server, and starts take longer.": (
        "tests/plugins/process/test_zygote_rights.py::test_root_has_no_zygote_where_it_would_be_root",
        "tests/plugins/process/test_zygote_rights.py::test_there_is_no_zygote_that_nothing_holds",
        "tests/plugins/process/test_zygote_rights.py::test_a_server_that_is_not_root_has_no_zygote_that_could_send_it_signals",
    ),
    "A prepared environment that sandboxes share is the lower layer of an overlayfs, which the server mounts as root before the sandbox starts.": (
        "tests/plugins/process/test_overlays.py::test_files_are_the_sandboxs_own_and_the_layer_stays_as_it_is",
    ),
    "Its files belong to root, in a directory that is not visible in any sandbox, and the kernel never writes to them: changes are written to the sandbox's directory.": (
        "tests/plugins/process/test_overlays.py::test_files_are_the_sandboxs_own_and_the_layer_stays_as_it_is",
        "tests/plugins/process/test_overlays.py::test_a_hostile_sandbox_reaches_neither_the_layer_nor_another_one",
    ),
    "Users cannot set the attributes that the kernel uses for overlays, so a sandbox cannot redirect them to other files.": (
        "tests/plugins/process/test_overlays.py::test_a_hostile_sandbox_reaches_neither_the_layer_nor_another_one",
    ),
    'Each sandbox has limits of memory, disk, processes and open files, as far as the machine can enforce them; the "is ready" line lists limits that are not enforced.': (
        "tests/live/test_default_limits.py::test_what_one_sandbox_does_to_the_machine_another_does_not_feel",
        "tests/sandboxes/test_default_limits.py::test_a_spec_has_what_it_leaves_open_limited_by_default",
        "tests/cli/test_serve.py::test_a_server_that_is_ready_says_how_sandboxes_are_held",
    ),
    "A sandbox that exhausts its limits does not stop the work of others.": (
        "tests/live/test_default_limits.py::test_what_one_sandbox_does_to_the_machine_another_does_not_feel",
    ),
    "Disk usage is checked periodically and not reserved: data written within seconds may exceed the limit.": (
        "tests/plugins/process/test_limits.py::test_a_disk_that_fills_later_is_noticed_in_moments",
    ),
    "Each file counts at least 4 KiB, at any depth, also if it has no name, as long as a process has it open or mapped; files that are only in transit in a unix socket are not counted.": (
        "tests/plugins/process/test_limits.py::test_empty_files_count_since_there_is_room_for_so_many_only",
        "tests/plugins/process/test_limits.py::test_files_count_however_deep_they_are",
        "tests/plugins/process/test_limits.py::test_files_without_a_name_count_as_long_as_they_are_mapped",
        "tests/plugins/process/test_limits.py::test_files_without_a_name_count_as_long_as_they_are_open",
    ),
    "Shared memory, message queues, temporary files, tmux and other unix sockets of a sandbox are not accessible to other sandboxes.": (
        "resilience:containment",
        "resilience:ports",
    ),
    "By default each sandbox has its own network namespace, with its own loopback interface.": (
        "resilience:ports",
        "tests/plugins/process/test_own_network.py::test_it_reaches_nothing_of_this_machine_but_a_resolver",
    ),
    "Other sandboxes can neither see nor connect to its ports, nor take them; only the gateway can, with a key of its owner or its own.": (
        "resilience:ports",
        "resilience:users",
    ),
    'With `network = "open"`, the default, it connects to other hosts by slirp4netns, including other machines of the local network and containers, but not to addresses of this machine; exceptions are the server, and models on the loopback interface that the operator lists or an administrator configures.': (
        "resilience:egress",
        "tests/plugins/process/test_own_network.py::test_it_reaches_what_is_beyond_this_machine",
        "tests/plugins/process/test_own_network.py::test_the_server_and_models_on_this_machine_are_where_they_always_are",
        "tests/models/test_hosts.py::test_a_model_on_this_machine_is_for_administrators_and_where_it_is_listed",
    ),
    "Without slirp4netns, the server's proxy is the only connection to the outside.": (
        "tests/plugins/process/test_own_network.py::test_without_slirp4netns_a_proxy_leads_out_and_never_to_this_machine",
    ),
    "Before anything is sent over a new connection to a port of a sandbox, its backend confirms that the port belongs to that sandbox.": (
        "tests/plugins/process/test_port_taking.py::test_who_listens_first_at_the_port_of_anothers_agent_is_told_nothing",
        "tests/plugins/process/test_port_taking.py::test_who_takes_a_worker_port_of_anothers_sandbox_is_told_nothing",
        "tests/plugins/process/test_peers.py::test_a_connection_leads_to_the_sandbox_of_the_process_that_accepts_it",
        "tests/plugins/process/test_peers.py::test_who_has_the_pid_of_a_process_that_has_ended_is_not_of_its_sandbox",
    ),
    'With `backends.process.network = "host"` no other process can bind the port of an agent server: its socket is bound before the sandbox starts, and passed to it.': (
        "tests/plugins/process/test_port_taking.py::test_nobody_takes_the_port_of_an_agent_that_is_passed_its_socket",
        "tests/live/test_process_backend.py::test_nobody_can_bind_the_port_of_an_agent_server_in_the_machines_network",
    ),
    "Work ports are bound by number, so another sandbox can take one; then nothing is sent there.": (
        "tests/plugins/process/test_port_taking.py::test_who_takes_a_worker_port_of_anothers_sandbox_is_told_nothing",
    ),
    '`network = "none"` allows connections to this server only, and `allowlist` to this server and the listed hosts.': (
        "resilience:egress",
        "tests/plugins/process/test_isolation.py::test_a_sandbox_without_network_is_reached_and_reaches_the_server_only",
    ),
    "A user cannot make the server connect to an address that is not public, by a webhook, a git host, a model or a redirect.": (
        "resilience:inside",
        "tests/agentserver/test_own_addresses.py::test_nothing_is_called_at_an_address_of_this_machine",
        "tests/agentserver/test_own_addresses.py::test_no_special_address_is_called",
    ),
    "The server stores hashes of API keys.": ("resilience:canaries",),
    "Secrets, model keys, tokens, keys of GitHub Apps and sandbox keys are encrypted with AES-256-GCM, each with its row as associated data.": (
        "resilience:canaries",
        "tests/storage/test_vault.py::test_a_sealed_value_does_not_open_in_another_context",
    ),
    "A server with a wrong master key does not start.": (
        "tests/storage/test_vault.py::test_another_key_is_recognised_as_such",
    ),
    "Logs, events, exports, errors, webhooks and metrics contain no secrets.": (
        "resilience:canaries",
    ),
    "A browser's login is a cookie and a token in the storage of the page's origin, port included; neither is accepted without the other.": (
        "resilience:users",
        "resilience:origins",
        "tests/http/v1/test_logins.py::test_one_part_of_a_login_opens_nothing_without_the_other",
    ),
    "So a page at another port of the host can neither use nor plant a login.": (
        "resilience:origins",
    ),
    "Logins are not accepted for requests from another origin.": (
        "resilience:origins",
        "tests/http/v1/test_logins.py::test_the_cookie_counts_for_pages_of_the_server_only",
    ),
    "For an unknown host name the server rejects requests without a valid key, except health checks.": (
        "resilience:origins",
        "tests/http/access/test_hosts.py::test_without_a_key_another_name_gets_nothing",
    ),
    "A login link is valid once, and shows its user before it is used.": (
        "tests/http/v1/test_logins.py::test_a_link_logs_in_once",
        "tests/live/console/test_other_ports.py::test_a_login_link_says_whose_it_is_and_who_is_logged_in",
    ),
    "A page that a sandbox serves has no access to the API.": (
        "tests/live/console/test_other_ports.py::test_a_page_of_a_sandbox_is_nobody_to_the_server",
    ),
    "The cookie of a work port's origin is valid only for that port.": (
        "tests/http/gateway/test_origins.py::test_a_stolen_cookie_opens_nothing_else",
    ),
    "The proxy for front ends, `agentsvc deploy show front-end.nginx.conf`, asks for a password and rejects requests from pages of other origins and for other host names.": (
        "resilience:front-end",
        "tests/live/test_front_end.py::test_the_recipe_hears_no_page_elsewhere",
        "tests/live/test_front_end.py::test_the_recipe_hears_no_other_name",
        "tests/live/test_front_end.py::test_the_recipe_wants_the_password_and_keeps_the_key_to_itself",
    ),
    "To requests that it allows without the password, for shared pages, other agents and editors, it adds no key.": (
        "tests/live/test_front_end_visitors.py::test_a_visitor_reads_the_shared_page_and_nothing_else",
        "tests/live/test_front_end_visitors.py::test_agents_and_editors_show_keys_of_their_own",
    ),
    "The key of a sandbox, the token for its model and the credential for a git token give no access to another user's data, or to operations for users.": (
        "resilience:users",
    ),
    "The key of a model that is called through the server is not in the sandbox.": (
        "tests/http/test_model_proxy.py::test_an_agent_gets_a_token_in_place_of_the_key",
    ),
    "Nothing is shared unless `sharing.enabled` is set.": (
        "tests/http/v1/test_mcp_server.py::test_without_its_switch_there_is_no_server",
    ),
    "Then everyone with the link of a conversation can read it without a key, until its owner revokes the link or it expires.": (
        "tests/http/v1/test_sharing.py::test_whoever_has_a_link_reads_the_conversation_without_a_key",
        "tests/http/v1/test_sharing.py::test_a_link_ends_when_it_is_revoked_or_expires",
    ),
    "Secrets of the owner are masked there.": (
        "tests/http/v1/test_sharing.py::test_nothing_that_is_shared_shows_a_secret_of_its_owner",
    ),
    "Sign-in by a provider or a proxy is off unless `sign_in.enabled` is set.": (
        "tests/http/v1/test_sign_in.py::test_without_its_switch_nobody_signs_in",
    ),
    "Then a token that the provider has not signed for this server and this sign-in is rejected, and a header is accepted only from a trusted proxy.": (
        "tests/http/v1/test_sign_in.py::test_a_token_that_is_not_good_lets_nobody_in",
        "tests/http/v1/test_sign_in.py::test_a_sign_in_belongs_to_the_page_that_began_it_and_counts_once",
        "tests/http/v1/test_sign_in.py::test_a_header_counts_only_from_a_trusted_proxy",
    ),
    "No account is linked to an existing user without an invitation.": (
        "tests/http/v1/test_sign_in.py::test_an_invitation_makes_an_account_a_user_that_there_is",
    ),
    "New keys are shown only in a terminal, and otherwise written to a file of mode 0600.": (
        "resilience:canaries",
        "tests/cli/test_keys.py::test_where_there_is_no_terminal_a_key_goes_to_a_file_of_its_owner",
    ),
    "The bootstrap key is not in the environment of a running server.": (
        "resilience:canaries",
        "tests/cli/test_serve.py::test_secrets_of_the_environment_are_in_that_of_no_process",
    ),
    "Half-open connections, WebSockets without a key, and events and conversations from one sandbox are limited, and do not lock out other users.": (
        "resilience:floods-inside",
    ),
    "Connections without a valid key get at most half of the capacity, those with keys of one user three quarters.": (
        "tests/http/test_connection_limit.py::test_half_of_the_room_is_kept_for_those_with_a_key",
        "tests/http/v1/test_streams_first_message.py::test_a_user_leaves_connections_to_others",
        "tests/http/test_floods.py::test_half_open_connections_keep_no_user_out",
    ),
    "The requests per minute are limited for each key, and for each address without a valid key.": (
        "tests/http/test_limits.py::test_a_key_is_told_what_it_has_left_and_refused_beyond",
        "tests/http/test_limits.py::test_an_address_without_a_good_key_is_refused_but_not_who_has_one",
    ),
    "Restoring a backup, importing a directory and archiving a workspace write only to the intended places, create no links or special files in the data directory, and are limited in time and size.": (
        "resilience:archives",
    ),
    "Their input still determines the contents of the restored server, so restore only backups of your own.": (
        "tests/cli/test_operations.py::test_a_backup_of_a_server_that_runs_is_restored_on_a_new_machine",
    ),
    "A rejected backup changes nothing, and a restore overwrites no existing file.": (
        "tests/storage/test_hostile_archives.py::test_no_hostile_backup_is_restored_or_changes_anything",
        "tests/storage/test_hostile_archives.py::test_a_restore_overwrites_nothing_that_is_there",
    ),
    "Git runs in the sandbox.": ("resilience:repositories",),
    "Hooks, configuration, submodules, attributes, links and file names of a repository cannot run anything outside of it, or make the server read or write anything there.": (
        "resilience:repositories",
    ),
    "The set-up installs the packages of a lock file with hashes, and rejects a file with another hash.": (
        "tests/project/test_lock.py::test_every_package_has_a_version_and_hashes_and_no_address",
        "tests/project/test_lock.py::test_the_set_up_refuses_a_file_with_another_hash",
    ),
    "So does `agentsvc images build`.": (
        "tests/project/test_lock.py::test_the_image_of_sandboxes_is_made_of_parts_of_the_lock",
        "tests/cli/test_images.py::test_a_build_refuses_a_file_with_another_hash",
    ),
    "`agentsvc sbom` lists the installed packages.": (
        "tests/cli/test_sbom.py::test_every_installed_package_is_in_it_in_its_version",
    ),
    "The audit of known vulnerabilities includes the packages of the agent.": (
        "tests/project/test_audit.py::test_what_is_installed_is_in_the_lock_with_the_packages_of_the_agent",
    ),
    "The server's start and `doctor` name relevant vulnerabilities of the running Python.": (
        "tests/base/test_python_vulnerabilities.py::test_doctor_says_what_vulnerabilities_the_running_python_has",
        "tests/base/test_python_vulnerabilities.py::test_the_start_warns_of_the_vulnerabilities_of_the_running_python",
    ),
}


def sections(text: str) -> dict[str, str]:
    """Return the text of each section by its heading."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def sentences(text: str) -> list[str]:
    """Return the sentences of a section, each on one line; an item of a list ends a sentence."""
    items = re.split(r"^- |\n\n", text, flags=re.MULTILINE)
    found = [one for item in items for one in _END.split(" ".join(item.split()))]
    return [one for one in found if one]


def promised() -> list[str]:
    told = sections(PAGE.read_text())
    return [one for name in PROMISES for one in sentences(told[name])]


def functions(file: Path) -> set[str]:
    """Return the tests that a file defines."""
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_sentence_is_held_by_a_test_and_no_other_is_told() -> None:
    assert sorted(promised()) == sorted(HELD)


@pytest.mark.parametrize("test", sorted({one for tests in HELD.values() for one in tests}))
def test_what_holds_a_sentence_is_run(test: str) -> None:
    if test.startswith("resilience:"):
        assert test.removeprefix("resilience:") in SMALL
        return
    file, _, name = test.partition("::")
    assert name.startswith("test_")
    assert name in functions(ROOT / file)


def test_every_section_promises_something_or_says_that_it_does_not() -> None:
    others = {"Reporting", "Threat model"}
    others |= {"Why there is no challenge to agent servers"}
    others |= {"Effects of weaker settings", "Out of scope"}
    assert set(sections(PAGE.read_text())) == {*PROMISES, *others}


def test_sentences_are_told_apart() -> None:
    text = "- One is `a.b` so.\n  It goes\n  on. `Two` is\n- three"
    assert sentences(text) == ["One is `a.b` so.", "It goes on.", "`Two` is", "three"]
