"""Devices become targets: identities, merging, choosing and insisting."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_portability import targets
from pytest_portability.errors import UsageError
from pytest_portability.targets import Absent, Device, Target, markers, matches, merge, select


def device(**changed: Any) -> Device:
    """An H200 as torch sees it, but for what is given."""
    facts: dict[str, Any] = {
        "runtimes": ("torch",),
        "handle": "cuda:0",
        "vendor": "nvidia",
        "arch": "sm_90",
        "product": "NVIDIA H200",
        "platform": "cuda",
    }
    return Device(**(facts | changed))


def target(**changed: Any) -> Target:
    """The target of such a device."""
    return merge([device(**changed)])[0]


AMD: Mapping[str, Any] = {
    "vendor": "amd",
    "arch": "gfx942",
    "product": "AMD Instinct MI300X",
    "platform": "rocm",
}
CPU = targets.cpu_device(runtimes=("torch",), handle="cpu")


@pytest.mark.parametrize(
    ("vendor", "arch", "product", "partition", "expected"),
    [
        ("nvidia", "sm_90", "NVIDIA H200", "", "nvidia-h200"),
        ("nvidia", "sm_80", "NVIDIA A100-SXM4-80GB", "", "nvidia-a100-sxm4-80gb"),
        ("nvidia", "sm_80", "A100-SXM4-80GB", "", "nvidia-a100-sxm4-80gb"),
        ("nvidia", "sm_80", "NVIDIA A100 MIG 1g.5gb", "", "nvidia-a100-mig-1g.5gb"),
        ("amd", "gfx942", "AMD Instinct MI300X", "", "amd-mi300x"),
        ("amd", "gfx942", "AMD Instinct MI300X", "SPX/NPS1", "amd-mi300x"),
        ("amd", "gfx942", "AMD Instinct MI300X", "CPX/NPS4", "amd-mi300x-cpx-nps4"),
        ("amd", "gfx1103", "AMD Radeon Graphics", "", "amd-radeon-gfx1103"),
        ("amd", "gfx942", "", "", "amd-gfx942"),
        ("intel", "xe-hpc", "Intel(R) Data Center GPU Max 1550", "", "intel-max-1550"),
        ("intel", "xe-hpg", "Intel(R) Arc(TM) A770 Graphics (dGPU)", "", "intel-arc-a770"),
        ("apple", "m2", "Apple M2 Max", "", "apple-m2-max"),
        ("cpu", "x86_64", "intel xeon 6.207 2c", "", "cpu-intel-xeon-6.207-2c"),
    ],
)
def test_an_id_is_a_slug_of_vendor_and_product(
    vendor: str, arch: str, product: str, partition: str, expected: str
) -> None:
    """Without vendor twice, without filler words; a partition adds itself, a whole device not."""
    found = target(vendor=vendor, arch=arch, product=product, partition=partition)
    assert found.id == expected


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (
            {
                "vendor_id": "GenuineIntel",
                "model name": "Intel(R) Xeon(R) Processor @ 2.60GHz",
                "cpu family": "6",
                "model": "207",
            },
            "cpu-intel-xeon-6.207-2c",
        ),
        (
            {"vendor_id": "GenuineIntel", "model name": "unknown", "cpu family": "6", "model": "7"},
            "cpu-intel-6.7-2c",
        ),
        (
            {
                "vendor_id": "GenuineIntel",
                "model name": "QEMU Virtual CPU version 2.5+",
                "cpu family": "15",
                "model": "107",
            },
            "cpu-intel-15.107-2c",
        ),
        (
            {"vendor_id": "AuthenticAMD", "model name": "AMD EPYC 9654 96-Core Processor"},
            "cpu-amd-epyc-9654-2c",
        ),
        (
            {
                "vendor_id": "GenuineIntel",
                "model name": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            },
            "cpu-intel-xeon-platinum-8481c-2c",
        ),
        ({"model name": "Apple M2 Max"}, "cpu-apple-m2-max-2c"),
        ({"CPU implementer": "0x41", "CPU part": "0xd40"}, "cpu-arm-0xd40-2c"),
    ],
)
def test_a_cpu_is_named_by_its_model_number_or_by_family_and_model(
    info: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypervisors hide the brand; the clock in it is no part of an identity."""
    monkeypatch.setattr(targets, "_cpu_info", lambda: info)
    monkeypatch.setattr(targets, "usable_cores", lambda: 2)
    found = merge([targets.cpu_device(runtimes=("torch",), handle="cpu")])
    assert found[0].id == expected
    assert found[0].vendor == "cpu"


def test_this_cpu_has_a_stable_id() -> None:
    """Asked twice it is the same, and it ends in the usable cores."""
    again = targets.cpu_device(runtimes=("openvino",), handle="CPU")
    (found,) = merge([CPU, again])
    assert re.fullmatch(rf"cpu-[a-z0-9.-]+-{targets.usable_cores()}c", found.id)
    assert found.handles == {"openvino": "CPU", "torch": "cpu"}
    assert found.memory_bytes is None or found.memory_bytes > 2**20


def _cgroup(root: Path, line: str, files: Mapping[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line + "\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/job/step", {"job/step/cpu.max": "max 100000"}, 8),
        ("0::/job/step", {"job/step/cpu.max": "max 100000", "job/cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/gone", {"cpu.max": "10000 100000"}, 1),
        (
            "4:cpu,cpuacct:/a",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            "4:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            8,
        ),
        ("5:memory:/a", {"memory/a/cpu.max": "100000 100000"}, 8),
    ],
)
def test_usable_cores_respect_cgroup_quotas(
    line: str,
    files: Mapping[str, str],
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The smallest quota of the group and those above it, rounded up; both cgroup versions."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert targets.usable_cores(_cgroup(tmp_path, line, files)) == cores


def test_cgroup_folders_go_from_the_own_group_to_the_mount(tmp_path: Path) -> None:
    """Groups of other controllers are left out."""
    root = _cgroup(tmp_path, "5:memory:/m\n4:cpu,cpuacct:/a\n0::/job/step", {})
    folders = [str(f.relative_to(root / "sys/fs/cgroup")) for f in targets.cgroup_folders(root)]
    assert folders == ["cpu,cpuacct/a", "cpu,cpuacct", "job/step", "job", "."]


def test_usable_cores_respect_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned process has the cores it is pinned to."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5}, raising=False)
    assert targets.usable_cores(tmp_path) == 2


def test_two_identical_cards_are_one_target_with_the_first_cards_handle() -> None:
    """Otherwise every test would run twice for the same answer."""
    (found,) = merge([device(index=1, handle="cuda:1"), device()])
    assert (found.id, found.handles, found.index) == ("nvidia-h200", {"torch": "cuda:0"}, 0)


def test_the_other_identical_cards_are_known_by_what_reaches_them() -> None:
    """An item takes the first that is free."""
    pci = [{"pci": f"0000:{n}b:00.0"} for n in range(3)]
    ort = {"runtimes": ("onnxruntime.cuda",)}
    views = [
        *(device(index=n, handle=f"cuda:{n}", address=pci[n]) for n in range(3)),
        *(device(**ort, index=2 - n, handle=f"gpu:{2 - n}", address=pci[n]) for n in range(2)),
    ]
    (found,) = merge(views)
    assert found.handles == {"onnxruntime.cuda": "gpu:2", "torch": "cuda:0"}
    assert [t.handles for t in found.twins] == [
        {"onnxruntime.cuda": "gpu:1", "torch": "cuda:1"},
        {"torch": "cuda:2"},
    ]
    assert {t.id for t in found.twins} == {found.id}
    assert [t.address for t in found.twins] == pci[1:]


def test_a_view_that_may_be_the_same_card_is_no_twin() -> None:
    """Libraries number cards in their own orders: measuring one card twice at once helps nobody."""
    views = [device(), device(runtimes=("openvino",), index=1, handle="GPU.1")]
    (found,) = merge(views)
    assert found.twins == ()
    assert merge([targets.cpu_device(runtimes=(n,), handle="x") for n in "ab"])[0].twins == ()


def test_a_device_that_two_libraries_name_alike_is_one_target() -> None:
    """Identity is enough; facts come together."""
    other = device(
        runtimes=("onnxruntime.cuda",), handle="gpu:0", memory_bytes=7, facts={"driver": "580"}
    )
    (found,) = merge([device(facts={"cuda": "13.0"}), other])
    assert found.handles == {"onnxruntime.cuda": "gpu:0", "torch": "cuda:0"}
    assert found.facts == {"cuda": "13.0", "driver": "580"}
    assert found.memory_bytes == 7


def test_a_device_that_two_libraries_name_differently_is_known_by_its_address() -> None:
    """PCI addresses are written with more or fewer zeros; the vendor's own stack names it."""
    one = device(**AMD, address={"pci": "0000:1b:00.0"}, partition="SPX/NPS1", handle="cuda:0")
    two = device(
        **{**AMD, "product": "Aqua Vanjaram 308X", "platform": "directml", "arch": ""},
        runtimes=("onnxruntime.dml",),
        handle="gpu:0",
        address={"pci": "00000000:1B:00.0"},
    )
    for order in ([one, two], [two, one]):
        (found,) = merge(order)
        assert (found.id, found.platform, found.arch) == ("amd-mi300x", "rocm", "gfx942")
        assert found.handles == {"onnxruntime.dml": "gpu:0", "torch": "cuda:0"}


def test_a_card_seen_whole_and_as_a_slice_is_the_slice() -> None:
    """With MIG on, the slice is all a process can use, whatever nvidia-smi lists."""
    card = device(runtimes=("onnxruntime.cuda",), handle="gpu:0", address={"pci": "0000:1b:00.0"})
    part = device(product="NVIDIA H200 MIG 1g.18gb", address={"pci": "0000:1b:00.0"})
    (found,) = merge([card, part])
    assert found.id == "nvidia-h200-mig-1g.18gb"


def test_a_device_without_a_name_joins_the_vendors_device_of_that_index() -> None:
    """ONNX Runtime's built-in providers do not say what they run on."""
    nameless = device(product="", arch="", runtimes=("onnxruntime.cuda",), handle="gpu:0")
    (found,) = merge([nameless, device()])
    assert found.handles == {"onnxruntime.cuda": "gpu:0", "torch": "cuda:0"}
    assert found.id == "nvidia-h200"


@pytest.mark.parametrize(
    "unit", [{"platform": "npu", "handle": "x"}, {"platform": "qnn", "handle": "npu:0"}]
)
def test_a_neural_unit_does_not_join_the_gpu_of_its_index(unit: Mapping[str, Any]) -> None:
    """Each kind is counted on its own; an address that is told by both still decides."""
    gpu = device(**AMD)
    nameless: Mapping[str, Any] = {**AMD, **unit, "product": "", "arch": "npu", "runtimes": ("o",)}
    assert [t.id for t in merge([gpu, device(**nameless)])] == ["amd-mi300x", "amd-npu"]
    named = device(**{**nameless, "product": "XDNA 2", "runtimes": ("p",), "handle": "NPU"})
    found = merge([gpu, device(**nameless), named])
    assert [t.id for t in found] == ["amd-mi300x", "amd-xdna-2"]
    assert found[1].handles == {"o": unit["handle"], "p": "NPU"}
    place = {"address": {"pci": "0000:c5:00.1"}}
    assert len(merge([device(**AMD, **place), device(**nameless, **place)])) == 1


@pytest.mark.parametrize(
    ("brand", "expected"),
    [
        ("Apple M4", ("Apple M4", "m4")),
        ("Apple M2 Max", ("Apple M2 Max", "m2")),
        ("Intel(R) Core(TM) i5", ("Intel(R) Core(TM) i5", "apple")),
        ("", ("Apple GPU", "apple")),
    ],
)
def test_a_mac_s_gpu_has_the_name_of_its_chip(
    brand: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has one, libraries do not."""
    monkeypatch.setattr(targets, "sysctl", lambda _name: brand)
    assert targets.apple_chip() == expected


def test_a_nameless_view_of_another_card_does_not_join_by_its_index() -> None:
    """Libraries number cards in their own orders; a known address outweighs the index."""
    named = device(address={"pci": "0000:1b:00.0"})
    nameless: Mapping[str, Any] = {"product": "", "runtimes": ("onnxruntime.dml",), "handle": "g"}
    other = device(**nameless, address={"pci": "0000:65:00.0"})
    assert len(merge([named, other])) == 2
    unknown = device(**nameless)
    assert len(merge([named, unknown])) == 1
    by_uuid = device(**nameless, address={"uuid": "GPU-aa"})
    assert len(merge([named, by_uuid])) == 1, "addresses of two kinds contradict nothing"
    same = device(**nameless, index=3, address={"pci": "0000:1B:00.0"})
    assert len(merge([named, same])) == 1


def test_the_address_is_that_of_the_first_card_and_no_fact() -> None:
    """Facts may go into records; what tells one card from its twin must not."""
    twin = device(index=1, handle="cuda:1", address={"pci": "0000:65:00.0", "uuid": "bb"})
    other = device(
        runtimes=("onnxruntime.cuda",),
        handle="gpu:0",
        address={"uuid": "GPU-a-a"},
        facts={"d": "1"},
    )
    (found,) = merge([twin, device(address={"pci": "0000:1b:00.0"}), other])
    assert found.address == {"pci": "0000:1b:00.0", "uuid": "GPU-a-a"}
    assert found.facts == {"d": "1"}


def test_accelerators_come_before_the_cpu_in_a_fixed_order() -> None:
    """Whatever order the libraries are asked in."""
    devices = [CPU, device(), device(**AMD)]
    expected = [t.id for t in merge(devices)]
    assert expected[:2] == ["amd-mi300x", "nvidia-h200"]
    assert [t.id for t in merge(devices[::-1])] == expected


@pytest.mark.parametrize(
    "pattern", ["amd-mi300x", "amd-*", "AMD-MI300*", "amd", "rocm", "gfx942", " rocm "]
)
def test_a_pattern_matches_id_vendor_platform_or_architecture(pattern: str) -> None:
    """Case and surrounding space do not matter."""
    assert matches(target(**AMD), pattern)
    assert not matches(target(), pattern)


def test_a_pattern_is_not_a_part_of_an_id() -> None:
    """``h200`` alone would also mean a GH200."""
    assert not matches(target(), "h200")
    assert matches(target(), "*h200")


def test_choosing_nothing_means_the_accelerators_or_else_the_cpu() -> None:
    """Defaults keep the matrix small."""
    found = merge([CPU, device()])
    assert [t.vendor for t in select(found, None)] == ["nvidia"]
    assert [t.vendor for t in select(merge([CPU]), None)] == ["cpu"]
    assert select(found, ["all"]) == found
    assert [t.vendor for t in select(found, ["cpu"])] == ["cpu"]
    assert select(found, ["amd-*"]) == ()
    assert select((), None) == ()


def test_markers_are_names_without_repeats() -> None:
    """A name with a dash could not be written in ``-m``."""
    assert markers(target()) == ("nvidia", "cuda", "sm_90")
    assert markers(target(vendor="intel", arch="xe-hpc", platform="xpu")) == (
        "intel",
        "xpu",
        "xe_hpc",
    )
    assert markers(merge([CPU])[0]) == ("cpu", CPU.arch)


def test_a_required_target_that_is_here_is_fine() -> None:
    """Nothing is raised."""
    targets.require(merge([device()]), [], ["nvidia", "nvidia-h200"])


def test_a_required_target_that_is_missing_says_what_is_here_and_why_the_rest_is_not() -> None:
    """Asked for, found, reasons, what to do."""
    absents = [
        Absent(name="rocm", reason="torch 2.13.0+cpu has no ROCm build"),
        Absent(name="openvino", reason="not installed"),
    ]
    with pytest.raises(UsageError) as caught:
        targets.require(merge([device()]), absents, ["nvidia", "amd-mi300x"])
    assert str(caught.value) == (
        "required target(s) 'amd-mi300x' not here; found: nvidia-h200 (cuda, sm_90); not found: "
        "rocm: torch 2.13.0+cpu has no ROCm build; openvino: not installed. Install the package "
        "or the driver of that device, or take the name out of the required targets"
    )


def test_a_required_target_on_an_empty_machine_says_so() -> None:
    """Nothing found and nothing left out is a message too."""
    with pytest.raises(UsageError, match="found: no device at all; not found: no library was left"):
        targets.require((), [], ["amd"])
