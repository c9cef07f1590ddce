"""What the sensors of a device tell, and that what they do not tell is unknown, never an error.

The vendors' modules are stand-ins with the names, units and structures of nvidia-ml-py 13.615 and
amdsmi 7.0; the kernel's files are trees in a temporary folder.
"""

# ruff: noqa: N802, N815 - the stand-ins have the libraries' own names

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import onnx_models
import pytest
from runtimes.fake import FakeBuild, FakeRuntime
from synthetic import KEY, RECORD, measurement

from pytest_portability import measure, recording, sensors, worker
from pytest_portability.errors import RecordError
from pytest_portability.records import path_of, read, write
from pytest_portability.runtimes import Request
from pytest_portability.samples import Measurement, Sampling
from pytest_portability.sensors import Reading, Sensors, Watch, disturbance
from pytest_portability.subject import Source

GPU = {"uuid": "8e8b5f3c-0000", "pci": "0000:1b:00.0"}


class Ticking:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watched(
    platform: str,
    between: Callable[[], object],
    facts: Mapping[str, str] | None = None,
    root: Path = Path("/nowhere"),
) -> Sensors:
    """What is seen of one second in which ``between`` happens."""
    clock = Ticking()
    watch = Watch(platform, facts or {}, root, clock)
    watch.start()
    between()
    clock.now_s += 1.0
    return watch.stop()


def fill(root: Path, files: Mapping[str, object]) -> None:
    """Write small files."""
    for name, value in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n", encoding="ascii")


def words(reading: Reading | Sensors, start: str) -> str:
    """Why something is missing."""
    (found,) = [text for text in reading.missing if text.startswith(start)]
    return found


# --- any device -----------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["mps", "directml", "webgpu", "fake"])
def test_a_platform_without_sensors_is_unknown_and_says_so(platform: str) -> None:
    expected = (f"{platform}: no sensor that an ordinary user may read",)
    assert sensors.read(platform, {}) == Reading(missing=expected)


@pytest.mark.parametrize(("platform", "module"), [("cuda", "pynvml"), ("rocm", "amdsmi")])
def test_a_library_that_is_not_installed_is_a_reason_not_an_error(
    platform: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found = watched(platform, lambda: None, GPU)
    assert module in words(found, f"{platform}: ModuleNotFoundError")
    assert found == Sensors(missing=found.missing)


def test_a_watch_that_was_never_started_knows_no_growth(tmp_path: Path) -> None:
    fill(tmp_path, cpu_files(throttled_ms=500))
    assert Watch("cpu", {}, tmp_path).stop().throttled == ()


def test_reading_this_machine_takes_less_than_five_milliseconds() -> None:
    watch = Watch("cpu", {})
    watch.start()
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        found = watch.stop()
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.005
    assert found.neighbours is None


# --- NVIDIA ---------------------------------------------------------------------------------------


class NVMLError(Exception):
    """As NVML's: made of a code, shown as its words."""

    def __str__(self) -> str:
        return {3: "Not Supported", 6: "Not Found", 13: "Function Not Found"}[self.args[0]]


@dataclass
class Nvml:
    """A stand-in for ``pynvml`` with one device."""

    reasons: int = 0x1
    pids: list[int] = field(default_factory=lambda: [os.getpid()])
    mig: list[int] | None = None
    used_bytes: int | None = None
    violations_ns: dict[int, int] = field(default_factory=dict)
    devices: int = 1
    known: tuple[str, ...] = ("GPU-8e8b5f3c-0000", "0000:1b:00.0")
    broken: tuple[str, ...] = ()
    asked: list[object] = field(default_factory=list)

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVMLError = NVMLError

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):
            raise NVMLError(13)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def _handle(self, name: object) -> str:
        self.asked.append(name)
        if name != 0 and name not in self.known:
            raise NVMLError(6)
        return "device"

    nvmlDeviceGetHandleByIndex = _handle
    nvmlDeviceGetHandleByUUID = _handle
    nvmlDeviceGetHandleByPciBusId = _handle

    def nvmlDeviceGetCurrentClocksEventReasons(self, _device: str) -> int:
        return self.reasons

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    def nvmlDeviceGetClockInfo(self, _device: str, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetTemperatureV(self, _device: str, _sensor: int) -> int:
        return 61

    def nvmlDeviceGetTemperature(self, _device: str, _sensor: int) -> int:
        return 60

    def nvmlDeviceGetPowerUsage(self, _device: str) -> int:
        return 412_345

    def nvmlDeviceGetMigMode(self, _device: str) -> list[int]:
        if self.mig is None:
            raise NVMLError(3)
        return self.mig

    def nvmlDeviceGetComputeRunningProcesses(self, _device: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=self.used_bytes) for pid in self.pids]

    def nvmlDeviceGetViolationStatus(self, _device: str, policy: int) -> Any:
        spent = self.violations_ns.get(policy, 0)
        return SimpleNamespace(violationTime=spent, referenceTime=0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_nvidia_tells_clock_temperature_and_power_in_plain_units(nvml: Nvml) -> None:
    found = sensors.read("cuda", GPU)
    assert (found.clock_hz, found.temperature_c, found.power_w) == (1.98e9, 61.0, 412.345)
    assert (found.throttled, found.neighbours, found.missing) == ((), 0, ())
    assert nvml.asked == ["GPU-8e8b5f3c-0000"]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x100, ()),
        (0x1 | 0x4, ()),
        (0x4, ("sw power cap",)),
        (0x20, ("sw thermal slowdown",)),
        (0x8 | 0x40, ("hw slowdown", "hw thermal slowdown")),
        (
            0x10 | 0x80 | 0x200 | 0x400,
            ("sync boost", "hw power brake", "board limit", "reliability"),
        ),
    ],
)
def test_reasons_are_words_and_idle_or_a_clock_setting_is_not_throttling(
    nvml: Nvml, mask: int, expected: tuple[str, ...]
) -> None:
    nvml.reasons = mask
    assert sensors.read("cuda", GPU).throttled == expected


def test_throttling_at_either_end_or_counted_between_them_is_seen(nvml: Nvml) -> None:
    nvml.reasons = 0x20

    def cooler() -> None:
        nvml.reasons = 0x1
        nvml.violations_ns = {0: 200_000_000, 1: 5_000_000}

    found = watched("cuda", cooler, GPU)
    assert found.throttled == ("sw thermal slowdown", "sw power cap")
    assert found.clock_before_hz == found.clock_after_hz == 1.98e9
    assert (found.temperature_after_c, found.power_after_w) == (61.0, 412.345)


def test_the_device_is_found_by_its_address_where_its_id_means_nothing_to_nvml(nvml: Nvml) -> None:
    nvml.known = ("0000:1b:00.0",)
    assert sensors.read("cuda", GPU).temperature_c == 61.0
    nvml.known = ()
    assert "uuid GPU-8e8b5f3c-0000: NVMLError: Not Found; pci" in words(
        sensors.read("cuda", GPU), "cuda"
    )


def test_a_slice_of_a_device_is_found_by_its_own_id(nvml: Nvml) -> None:
    nvml.known = ("MIG-1",)
    assert sensors.read("cuda", {"uuid": "MIG-1"}).temperature_c == 61.0


def test_without_an_id_only_a_single_device_can_be_meant(nvml: Nvml) -> None:
    """CUDA numbers devices otherwise than NVML, and ``CUDA_VISIBLE_DEVICES`` renumbers them."""
    assert sensors.read("cuda", {}).temperature_c == 61.0
    nvml.devices = 2
    found = sensors.read("cuda", {})
    assert found == Reading(missing=("cuda: which of 2 devices it is is not known",))


def test_other_processes_on_the_device_are_neighbours_and_the_more_of_both_ends_counts(
    nvml: Nvml,
) -> None:
    nvml.pids = [os.getpid(), 1, 2]
    found = watched("cuda", lambda: nvml.pids.remove(2), GPU)
    assert found.neighbours == 2


def test_what_this_process_started_itself_is_no_neighbour(nvml: Nvml) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        nvml.pids = [os.getpid(), child.pid, 1]
        found = sensors.read("cuda", GPU)
        child.communicate(b"\n")
    assert found.neighbours == 1


def test_a_reading_that_fails_as_a_whole_is_a_reason_not_an_error(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may answer with what no release of it answered before."""

    def gone() -> None:
        monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", lambda _device: "N/A")

    found = watched("cuda", gone, GPU)
    assert (found.clock_before_hz, found.clock_after_hz) == (1.98e9, None)
    assert "TypeError" in words(found, "cuda")


@pytest.mark.parametrize("pids", [[], [1, 2]])
def test_in_a_container_whose_process_ids_differ_neighbours_are_unknown(
    nvml: Nvml, pids: list[int]
) -> None:
    nvml.pids = pids
    found = sensors.read("cuda", GPU)
    assert found.neighbours is None
    assert "not among those on the device" in words(found, "neighbours")


@pytest.mark.parametrize(("platform", "library"), [("cuda", "nvml"), ("rocm", "amdsmi")])
def test_memory_that_this_process_holds_of_the_device_is_counted_from_when_the_watch_was_opened(
    platform: str, library: str, request: pytest.FixtureRequest
) -> None:
    vendor = request.getfixturevalue(library)
    vendor.used_bytes = 500_000_000
    watch = Watch(platform, GPU)
    vendor.used_bytes = 900_000_000
    watch.start()
    assert watch.stop().grown_bytes == 400_000_000
    vendor.used_bytes = None  # as a driver for displays does
    found = watch.stop()
    assert (found.grown_bytes, found.missing) == (None, ())


def test_processes_of_other_slices_are_not_counted(nvml: Nvml) -> None:
    nvml.mig, nvml.pids = [1, 1], [os.getpid(), 1]
    found = sensors.read("cuda", GPU)
    assert found.neighbours is None
    assert "MIG" in words(found, "neighbours")
    nvml.mig = [0, 0]
    assert sensors.read("cuda", GPU).neighbours == 1


def test_an_older_driver_is_asked_by_the_older_names(nvml: Nvml) -> None:
    nvml.reasons = 0x20
    nvml.broken = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV")
    found = sensors.read("cuda", GPU)
    assert (found.throttled, found.temperature_c) == (("sw thermal slowdown",), 60.0)
    assert found.missing == ()


def test_one_figure_that_fails_leaves_the_others(nvml: Nvml) -> None:
    nvml.broken = ("nvmlDeviceGetClockInfo", "nvmlDeviceGetViolationStatus")
    found = sensors.read("cuda", GPU)
    assert (found.clock_hz, found.power_w) == (None, 412.345)
    assert words(found, "clock") == "clock: NVMLError: Function Not Found"


def test_a_broken_driver_is_a_reason_not_an_error(nvml: Nvml) -> None:
    nvml.broken = ("nvmlInit",)
    assert sensors.read("cuda", GPU) == Reading(missing=("cuda: NVMLError: Function Not Found",))


def test_the_names_asked_for_are_those_of_the_library() -> None:
    """Where nvidia-ml-py is installed; the stand-in above cannot know."""
    nvml = pytest.importorskip("pynvml")
    for name in vars(Nvml):
        if name.lower().startswith("nvml"):
            assert hasattr(nvml, name), name


# --- AMD ------------------------------------------------------------------------------------------


class ClkType(IntEnum):
    """As ``amdsmi.AmdSmiClkType``."""

    GFX = 0


class TemperatureType(IntEnum):
    """As ``amdsmi.AmdSmiTemperatureType``."""

    HOTSPOT = 1


class TemperatureMetric(IntEnum):
    """As ``amdsmi.AmdSmiTemperatureMetric``."""

    CURRENT = 0


QUIET = {
    "acc_counter": 1000,
    "acc_prochot_thrm": 0,
    "acc_ppt_pwr": 0,
    "acc_socket_thrm": 0,
    "acc_vr_thrm": "N/A",
    "acc_hbm_thrm": 0,
    "active_prochot_thrm": False,
    "active_ppt_pwr": False,
    "active_socket_thrm": False,
    "active_vr_thrm": "N/A",
    "active_hbm_thrm": False,
}


@dataclass
class Amdsmi:
    """A stand-in for ``amdsmi`` with one device."""

    status: dict[str, Any] = field(default_factory=lambda: dict(QUIET))
    pids: list[int] = field(default_factory=lambda: [os.getpid()])
    power: dict[str, Any] = field(
        default_factory=lambda: {"socket_power": 0, "current_socket_power": 512}
    )
    handles: list[str] = field(default_factory=lambda: ["device"])
    forbidden: bool = False
    used_bytes: int | None = None

    AmdSmiClkType = ClkType
    AmdSmiTemperatureType = TemperatureType
    AmdSmiTemperatureMetric = TemperatureMetric

    def amdsmi_init(self) -> None:
        if self.forbidden:
            raise PermissionError(13, "Permission denied", "/dev/kfd")

    def amdsmi_get_processor_handles(self) -> list[str]:
        return self.handles

    def amdsmi_get_processor_handle_from_bdf(self, bdf: str) -> str:
        assert bdf == GPU["pci"]
        return "device"

    def amdsmi_get_clock_info(self, _device: str, _kind: ClkType) -> dict[str, Any]:
        return {"clk": 2100, "min_clk": 132, "max_clk": 2100, "clk_locked": "N/A"}

    def amdsmi_get_temp_metric(
        self, _device: str, _kind: TemperatureType, _metric: TemperatureMetric
    ) -> int:
        return 71

    def amdsmi_get_power_info(self, _device: str) -> dict[str, Any]:
        return self.power

    def amdsmi_get_violation_status(self, _device: str) -> dict[str, Any]:
        return dict(self.status)

    def amdsmi_get_gpu_process_list(self, _device: str) -> list[dict[str, Any]]:
        held = {"gtt_mem": 0, "cpu_mem": 4096, "vram_mem": self.used_bytes}
        return [{"name": "N/A", "pid": pid, "mem": 0, "memory_usage": held} for pid in self.pids]


@pytest.fixture
def amdsmi(monkeypatch: pytest.MonkeyPatch) -> Amdsmi:
    made = Amdsmi()
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    return made


def test_amd_tells_clock_temperature_and_power_in_plain_units(amdsmi: Amdsmi) -> None:
    found = sensors.read("rocm", GPU)
    assert (found.clock_hz, found.temperature_c, found.power_w) == (2.1e9, 71.0, 512.0)
    assert (found.throttled, found.neighbours, found.missing) == ((), 0, ())
    amdsmi.pids.append(1)
    assert sensors.read("rocm", {}).neighbours == 1


def test_violations_that_are_active_or_grew_by_a_share_of_the_time_are_throttling(
    amdsmi: Amdsmi,
) -> None:
    amdsmi.status["active_socket_thrm"] = True

    def later() -> None:
        amdsmi.status |= {"acc_counter": 2000, "acc_ppt_pwr": 400, "acc_hbm_thrm": 9}
        amdsmi.status["active_socket_thrm"] = False

    assert watched("rocm", later, GPU).throttled == ("socket thermal", "power cap")


def test_what_an_amd_device_does_not_tell_is_unknown(amdsmi: Amdsmi) -> None:
    amdsmi.power = {"socket_power": "N/A", "average_socket_power": "N/A"}
    amdsmi.status = dict.fromkeys(QUIET, "N/A")
    found = watched("rocm", lambda: None, GPU)
    assert (found.power_after_w, found.throttled) == (None, ())
    assert "socket_power: 'N/A'" in words(found, "power")


def test_several_amd_devices_without_an_address_are_not_guessed(amdsmi: Amdsmi) -> None:
    amdsmi.handles = ["one", "two"]
    assert words(sensors.read("rocm", {}), "rocm").endswith("which of 2 devices it is is not known")
    amdsmi.handles = []
    assert words(sensors.read("rocm", {}), "rocm") == "rocm: no device"


def test_amdsmi_without_permission_or_without_its_library_is_a_reason(
    amdsmi: Amdsmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    amdsmi.forbidden = True
    assert "PermissionError" in words(sensors.read("rocm", GPU), "rocm")

    def missing(_name: str) -> None:
        library = "libamd_smi.so"  # what importing amdsmi 7 raises without ROCm
        raise KeyError(library)

    monkeypatch.setattr(importlib, "import_module", missing)
    expected = "rocm: amdsmi is installed, the library 'libamd_smi.so' is not"
    assert words(sensors.read("rocm", GPU), "rocm") == expected


# --- Intel GPUs -----------------------------------------------------------------------------------

CARD = "sys/bus/pci/devices/0000:1b:00.0"
XE = f"{CARD}/tile0/gt0/freq0"
I915 = f"{CARD}/drm/card0/gt/gt0"


def test_xe_tells_the_fastest_tile_and_its_reasons_in_words(tmp_path: Path) -> None:
    fill(tmp_path, {f"{XE}/act_freq": 1550, f"{CARD}/tile0/gt1/freq0/act_freq": 0})
    fill(tmp_path, {f"{XE}/throttle/{name}": 1 for name in ("status", "reason_pl1")})
    fill(tmp_path, {f"{XE}/throttle/reason_thermal": 0, f"{XE}/throttle/reason_vr_tdc": 1})
    fill(tmp_path, {f"{CARD}/hwmon/hwmon3/temp2_input": 66000})
    found = sensors.read("xpu", GPU, tmp_path)
    assert (found.clock_hz, found.temperature_c) == (1.55e9, 66.0)
    assert found.throttled == ("power cap pl1", "vr tdc")
    assert (found.power_w, found.neighbours) == (None, None)


def test_i915_tells_the_same_by_other_names(tmp_path: Path) -> None:
    fill(tmp_path, {f"{I915}/rps_act_freq_mhz": 1300, f"{I915}/throttle_reason_status": 1})
    fill(tmp_path, {f"{I915}/throttle_reason_thermal": 1, f"{I915}/throttle_reason_pl2": 0})
    found = sensors.read("xpu", {}, tmp_path)
    assert (found.clock_hz, found.throttled) == (1.3e9, ("thermal",))
    assert words(found, "temperature") == "temperature: no monitor"


def test_a_parked_tile_has_no_clock(tmp_path: Path) -> None:
    fill(tmp_path, {f"{XE}/act_freq": 0})
    assert words(sensors.read("xpu", GPU, tmp_path), "clock") == "clock: every tile is parked"


def test_an_intel_gpu_that_is_not_there_or_not_the_only_one_is_unknown(tmp_path: Path) -> None:
    assert sensors.read("xpu", {}, tmp_path) == Reading(missing=("xpu: no device",))
    assert "no frequencies" in words(sensors.read("xpu", GPU, tmp_path), "xpu")
    fill(tmp_path, {f"{XE}/act_freq": 1, f"{XE.replace('1b', '2b')}/act_freq": 1})
    assert "which of 2 devices" in words(sensors.read("xpu", {}, tmp_path), "xpu")


# --- CPU ------------------------------------------------------------------------------------------

CPU = "sys/devices/system/cpu/cpu0"


def cpu_files(throttled_ms: int = 0, quota_us: int = 0) -> dict[str, object]:
    """A machine that shows everything."""
    return {
        f"{CPU}/cpufreq/scaling_cur_freq": 2_400_000,
        f"{CPU}/thermal_throttle/core_throttle_total_time_ms": throttled_ms,
        f"{CPU}/thermal_throttle/core_throttle_count": 7,
        "sys/class/hwmon/hwmon0/name": "nvme",
        "sys/class/hwmon/hwmon0/temp1_input": 90_000,
        "sys/class/hwmon/hwmon1/name": "coretemp",
        "sys/class/hwmon/hwmon1/temp1_input": 55_000,
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
        "sys/class/thermal/thermal_zone0/temp": 54_000,
        "proc/self/cgroup": "0::/ci/job",
        "sys/fs/cgroup/ci/cpu.stat": f"usage_usec 5\nnr_throttled 3\nthrottled_usec {quota_us}",
    }


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its root, with one processor to run on."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0}, raising=False)
    fill(tmp_path, cpu_files())
    return tmp_path


def test_linux_tells_a_processors_clock_and_the_temperature_of_its_package(machine: Path) -> None:
    found = sensors.read("cpu", {}, machine)
    assert (found.clock_hz, found.temperature_c, found.throttled) == (2.4e9, 55.0, ())
    assert found.missing == ("power: told to root only",)


def test_thermal_throttling_counts_when_it_took_a_share_of_the_time(machine: Path) -> None:
    for taken_ms, expected in ((9, ()), (200, ("core thermal",))):
        fill(machine, cpu_files())
        found = watched("cpu", partial(fill, machine, cpu_files(taken_ms)), root=machine)
        assert found.throttled == expected


def test_an_older_kernel_counts_only_occurrences_and_one_is_enough(machine: Path) -> None:
    files = machine / CPU / "thermal_throttle"
    (files / "core_throttle_total_time_ms").unlink()
    more = {f"{CPU}/thermal_throttle/core_throttle_count": 8}
    assert watched("cpu", lambda: None, root=machine).throttled == ()
    assert watched("cpu", lambda: fill(machine, more), root=machine).throttled == ("core thermal",)


def test_waiting_for_the_quota_of_a_cgroup_above_is_seen(machine: Path) -> None:
    waited = cpu_files(quota_us=300_000)
    assert watched("cpu", lambda: fill(machine, waited), root=machine).throttled == ("cpu quota",)


def test_the_first_version_of_cgroups_counts_nanoseconds(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("4:memory:/x\n3:cpu,cpuacct:/docker/abc\n")
    stat = "sys/fs/cgroup/cpu,cpuacct/cpu.stat"
    fill(machine, {stat: "nr_throttled 1\nthrottled_time 1000"})
    more = {stat: "nr_throttled 9\nthrottled_time 400000000"}
    assert watched("cpu", lambda: fill(machine, more), root=machine).throttled == ("cpu quota",)


def test_a_counter_that_was_reset_says_nothing(machine: Path) -> None:
    fill(machine, cpu_files(throttled_ms=900))
    reset = cpu_files(throttled_ms=100)
    assert watched("cpu", lambda: fill(machine, reset), root=machine).throttled == ()


def test_a_virtual_machine_that_shows_nothing_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / CPU).mkdir(parents=True)
    found = watched("cpu", lambda: None, root=tmp_path)
    assert found == Sensors(missing=found.missing)
    assert words(found, "clock") == "clock: no cpufreq, as in a virtual machine"
    assert words(found, "temperature") == "temperature: no monitor"
    assert "no counters" in words(found, "thermal throttling")


def test_another_system_than_linux_is_unknown(tmp_path: Path) -> None:
    found = sensors.read("cpu", {}, tmp_path)
    assert words(found, "cpu") == "cpu: this system shows no clocks to an ordinary user"


def test_files_that_must_not_be_read_or_hold_no_number_leave_the_others(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(machine, {f"{CPU}/cpufreq/scaling_cur_freq": "<unknown>"})
    whole = Path.read_text

    def guarded(self: Path, *args: Any, **kwargs: Any) -> str:
        if "hwmon" in self.parts[-3:][0]:
            raise PermissionError(13, "Permission denied", str(self))
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", guarded)
    found = sensors.read("cpu", {}, machine)
    assert (found.clock_hz, found.temperature_c) == (None, None)
    assert "ValueError" in words(found, "clock")
    assert "Permission denied" in words(found, "temperature")
    assert len(found.counters) == 2


def test_a_machine_with_many_processors_is_asked_at_a_sample_of_them(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(250)))
    files = {CPU[:-1] + f"{n}/cpufreq/scaling_cur_freq": 1_000_000 + n for n in range(250)}
    fill(machine, files)
    asked: list[str] = []
    whole = Path.read_text

    def counted(self: Path, *args: Any, **kwargs: Any) -> str:
        asked.append(self.name)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", counted)
    assert sensors.read("cpu", {}, machine).clock_hz == pytest.approx(1e9, rel=1e-3)
    assert asked.count("scaling_cur_freq") <= 16


# --- what follows from it -------------------------------------------------------------------------


def test_a_disturbance_is_said_in_words() -> None:
    assert disturbance((), ()) == ""
    assert disturbance(("sw thermal slowdown",), ()) == "throttled: sw thermal slowdown"
    assert disturbance((), (), 1) == "contended: another process on the device"
    both = disturbance(("hw slowdown", "board limit"), (), 2)
    expected = "throttled: hw slowdown, board limit; contended: 2 other processes on the device"
    assert both == expected


def test_a_power_cap_the_record_met_too_is_how_the_device_sustains_its_load() -> None:
    assert disturbance(("sw power cap",), ("sw power cap",)) == ""
    assert disturbance(("sw power cap",), ()) == "throttled: sw power cap"
    heat = ("sw thermal slowdown",)
    assert disturbance(heat, heat) == "throttled: sw thermal slowdown"


def test_a_cpu_quota_is_judged_as_contention_and_not_by_itself() -> None:
    assert disturbance(("cpu quota",), ()) == ""


def seen(*each: Sensors | None) -> Measurement:
    """A measurement whose repeats saw these."""
    some = measurement(repeats=len(each))
    pairs = zip(some.repeats, each, strict=True)
    return replace(some, repeats=tuple(replace(repeat, sensors=s) for repeat, s in pairs))


def test_half_of_the_repeats_make_a_measurement_throttled() -> None:
    hot, cool = Sensors(throttled=("thermal",), neighbours=1), Sensors(neighbours=0)
    assert seen(hot, cool).throttled == ("thermal",)
    assert seen(hot, cool, None).throttled == ()
    assert seen(None, None).throttled == ()
    assert [seen(hot, cool).neighbours, seen(hot, cool, cool).neighbours] == [1, 0]
    assert seen(None, Sensors()).neighbours is None


def test_a_record_keeps_why_it_was_throttled_and_nothing_that_differs_each_time(
    tmp_path: Path,
) -> None:
    hot = Sensors(throttled=("sw thermal slowdown",), neighbours=2, clock_after_hz=1e9)
    path = path_of(tmp_path, KEY.model, KEY.target)
    for each, kept in ((hot, True), (Sensors(clock_after_hz=1e9, neighbours=0), False)):
        figures = recording.figures(seen(each, each))
        assert write(path, {KEY: replace(RECORD, figures=figures)})
        stored = read(path)[KEY].figures
        assert stored.throttled == (("sw thermal slowdown",) if kept else ())
        assert stored.neighbours == (2 if kept else None)
        text = path.read_text(encoding="utf-8")
        assert ("throttled" in text, "neighbours" in text, "clock" in text) == (kept, kept, False)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("throttled = true", "throttled must be an array, found true"),
        ("throttled = [1]", "must be a string, found 1"),
        ('neighbours = "two"', 'neighbours must be an integer, found "two"'),
        ("throttle = []", "throttle is unknown"),
    ],
)
def test_a_record_says_strictly_what_it_was_throttled_by(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = path_of(tmp_path, KEY.model, KEY.target)
    write(path, {KEY: RECORD})
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("batch_effective", f"{line}\nbatch_effective"), encoding="utf-8")
    with pytest.raises(RecordError) as raised:
        read(path)
    assert problem in str(raised.value)


def test_a_repeat_reads_them_before_and_after_it_times_and_opens_them_before_it_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading a vendor's library must not count as the model's memory, nor into a window."""
    events: list[str] = []

    class Logged(Watch):
        def __init__(self, platform: str, facts: Mapping[str, str]) -> None:
            events.append(f"open {platform} {facts['pci']}")
            super().__init__(platform, facts)

        def start(self) -> None:
            events.append("start")

        def stop(self) -> Sensors:
            events.append("stop")
            return Sensors(throttled=("prochot",))

    class Stopwatch(measure.Stopwatch):
        def run(self) -> measure.Timing:
            events.append("time")
            return super().run()

    class Runtime(FakeRuntime):
        def build(self, request: Request) -> FakeBuild:
            events.append("build")
            return super().build(request)

    monkeypatch.setattr(sensors, "Watch", Logged)
    monkeypatch.setattr(worker, "Stopwatch", Stopwatch)
    model = tmp_path / "model"
    model.write_bytes(cloudpickle.dumps(onnx_models.mlp()))
    job = worker.Job(
        source=Source(model=model, inputs=model, name="mlp"),
        path=None,
        runtime=Runtime(),
        handle="cpu",
        platform="cpu",
        precision="native",
        options={},
        inputs={"x": np.zeros((2, 4, onnx_models.WIDTH), np.float32)},
        sampling=Sampling(seconds=0.01, window_s=0.001, yardstick_s=0.001, warmup_s=0.01),
        cache_dir=str(tmp_path),
        address=GPU,
    )
    found = worker.measure(job).repeat.sensors
    assert events[:5] == ["open cpu 0000:1b:00.0", "build", "start", "time", "stop"]
    assert found == Sensors(throttled=("prochot",))
