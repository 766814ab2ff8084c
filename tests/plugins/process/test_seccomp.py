"""The filter of system calls: run here as the kernel would run it."""

import errno
import struct

import pytest
from process.seccomp import MACHINES, compile_filter

ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
OTHER = {"x86_64": 0x40000003, "aarch64": 0x40000028}
READ = {"x86_64": 0, "aarch64": 63}
BOTH = pytest.mark.parametrize("machine", sorted(MACHINES))


def run(
    machine: str,
    number: int,
    *arguments: int,
    audit: int | None = None,
    may_join: bool = False,
    in_parts: bool = False,
) -> int:
    """Return what the filter says of a call."""
    program = compile_filter(machine, may_join=may_join, in_parts=in_parts)
    assert program is not None
    steps = list(struct.iter_unpack("<HBBI", program))
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, audit or MACHINES[machine].audit, 0, *values)
    held, at = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        match code:
            case 0x20:
                held = struct.unpack_from("<I", data, value)[0]
            case 0x06:
                return int(value)
            case 0x15:
                at += yes if held == value else no
            case 0x35:
                at += yes if held >= value else no
            case 0x45:
                at += yes if held & value else no
            case 0x54:
                held &= value
            case _:
                raise AssertionError(code)


@BOTH
def test_what_is_named_is_refused_and_the_rest_allowed(machine: str) -> None:
    kind = MACHINES[machine]
    for number in kind.refused.values():
        assert run(machine, number) == FAIL | errno.EPERM
    for number in (428, 429, 430, 431, 432, 433, 442, 443):
        assert run(machine, number) == FAIL | errno.EPERM
    for number in (425, 426, 427, 435):
        assert run(machine, number) == FAIL | errno.ENOSYS
    assert run(machine, READ[machine]) == ALLOW
    assert run(machine, 439) == ALLOW


@BOTH
def test_a_sandbox_is_joined_by_what_may_join_alone_and_no_other_is_found(machine: str) -> None:
    kind = MACHINES[machine]
    whole = 0x10000000 | 0x20000000 | 0x00020000
    refused = FAIL | errno.EPERM
    assert run(machine, kind.calls["setns"], 3, whole) == refused
    assert run(machine, kind.calls["setns"], 3, whole, may_join=True) == ALLOW
    assert run(machine, kind.calls["setns"], 3, whole | 0x40000000, may_join=True) == ALLOW
    for part in (0, 0x10000000, 0x20000000, 0x00020000, 0x30000000, 0x40000000):
        assert run(machine, kind.calls["setns"], 3, part, may_join=True) == refused
    assert run(machine, kind.calls["setns"], 3, 0, may_join=True, in_parts=True) == ALLOW
    # NS_GET_USERNS, NS_GET_PARENT, NS_MNT_GET_NEXT
    for request in (0xB701, 0xB702, 0x8010B70B):
        assert run(machine, kind.calls["ioctl"], 3, request, may_join=True) == refused
        assert run(machine, kind.calls["ioctl"], 3, request) == ALLOW
    assert run(machine, kind.calls["ioctl"], 3, 0x5401, may_join=True) == ALLOW
    for number in (kind.calls["process_vm_readv"], kind.calls["process_vm_writev"], 438):
        assert run(machine, number, may_join=True) == refused
        assert run(machine, number) == ALLOW
    assert run(machine, 434, 1, 0, may_join=True) == FAIL | errno.ENOSYS
    for request in (16, 0x4206):
        assert run(machine, kind.calls["ptrace"], request, 1, may_join=True) == refused
        assert run(machine, kind.calls["ptrace"], request, 1) == ALLOW
    assert run(machine, kind.calls["ptrace"], 0, may_join=True) == ALLOW
    assert run(machine, kind.calls["clone"], 0x10000000, may_join=True) == refused
    assert run(machine, kind.calls["prlimit"], 1, 0, may_join=True) == refused
    assert run(machine, kind.calls["prlimit"], 0, may_join=True) == ALLOW
    assert run(machine, kind.calls["prlimit"], 1, 0) == ALLOW


@BOTH
def test_a_process_may_be_made_and_a_namespace_may_not(machine: str) -> None:
    clone = MACHINES[machine].calls["clone"]
    assert run(machine, clone, 17) == ALLOW
    assert run(machine, clone, 0x3D0F00) == ALLOW  # a thread
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(machine, clone, flag | 17) == FAIL | errno.EPERM


@BOTH
def test_only_usual_kinds_of_sockets_may_be_made(machine: str) -> None:
    number = MACHINES[machine].calls["socket"]
    for family in (1, 2, 10, 16):
        assert run(machine, number, family) == ALLOW
    for family in (0, 3, 17, 38, 40):
        assert run(machine, number, family) == FAIL | errno.EAFNOSUPPORT


@BOTH
def test_nobody_types_into_a_terminal(machine: str) -> None:
    number = MACHINES[machine].calls["ioctl"]
    assert run(machine, number, 0, 0x5401) == ALLOW
    for request in (0x5412, 0x541C):
        assert run(machine, number, 0, request) == FAIL | errno.EPERM
        assert run(machine, number, 0, request, may_join=True) == FAIL | errno.EPERM


@BOTH
def test_calls_of_another_kind_of_processor_end_the_process(machine: str) -> None:
    assert run(machine, READ[machine], audit=OTHER[machine]) == KILL


def test_the_other_numbers_of_x86_64_do_not_exist() -> None:
    assert run("x86_64", 0x40000000 | MACHINES["x86_64"].refused["mount"]) == FAIL | errno.ENOSYS


def test_other_processors_have_no_filter() -> None:
    assert compile_filter("riscv64") is None
