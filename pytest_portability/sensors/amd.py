"""AMD's GPUs by AMD SMI: the module ``amdsmi``, which comes with ROCm.

Written to the documentation, not seen on a device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_portability.sensors.reading import (
    Asked,
    Counter,
    Reading,
    UnknownError,
    only,
    others,
    own,
)

_VIOLATIONS = {
    "prochot_thrm": "prochot",
    "ppt_pwr": "power cap",
    "socket_thrm": "socket thermal",
    "vr_thrm": "voltage regulator thermal",
    "hbm_thrm": "memory thermal",
}
_POWER = ("socket_power", "current_socket_power", "average_socket_power")
"""Which of them holds the figure differs between releases and devices."""


def open_amdsmi(facts: Mapping[str, str], _root: Path) -> Callable[[], Reading]:
    """Find the device, and give what reads it; whatever is raised is why that cannot be."""
    try:
        smi = importlib.import_module("amdsmi")
    except KeyError as exc:  # what the package raises without ROCm's library
        what = f"amdsmi is installed, the library {exc} is not"
        raise UnknownError(what) from exc
    smi.amdsmi_init()
    if facts.get("pci"):
        device = smi.amdsmi_get_processor_handle_from_bdf(facts["pci"])
    else:
        device = only(smi.amdsmi_get_processor_handles())
    return partial(_read, smi, device)


def _read(smi: Any, device: Any) -> Reading:
    ask = Asked()
    degrees = ask("temperature", lambda: _temperature(smi, device))
    status = ask("throttling", lambda: smi.amdsmi_get_violation_status(device)) or {}
    return Reading(
        clock_hz=ask("clock", lambda: _clock(smi, device) * 1e6),
        temperature_c=degrees,
        power_w=ask("power", lambda: _first(smi.amdsmi_get_power_info(device), *_POWER)),
        # "N/A" where the device does not tell
        throttled=tuple(w for k, w in _VIOLATIONS.items() if status.get(f"active_{k}") is True),
        neighbours=ask("neighbours", lambda: others(_held(smi, device))),
        own_bytes=ask("own memory", lambda: own(_held(smi, device))),
        counters=tuple(_counters(status)),
        missing=tuple(ask.missing),
    )


def _held(smi: Any, device: Any) -> dict[int, int | None]:
    """Process id → bytes of the card's own memory."""
    found = smi.amdsmi_get_gpu_process_list(device)
    return {each["pid"]: each.get("memory_usage", {}).get("vram_mem") for each in found}


def _clock(smi: Any, device: Any) -> float:
    info = smi.amdsmi_get_clock_info(device, smi.AmdSmiClkType.GFX)
    return _first(info, "clk", "cur_clk")  # cur_clk: before ROCm 6.1


def _temperature(smi: Any, device: Any) -> float:
    """Degrees; the data-centre parts have no sensor at the edge."""
    kind, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
    return float(smi.amdsmi_get_temp_metric(device, kind, metric))


def _counters(status: Mapping[str, Any]) -> Iterable[Counter]:
    total = status.get("acc_counter")
    for key, reason in _VIOLATIONS.items():
        value = status.get(f"acc_{key}")
        if isinstance(total, int) and isinstance(value, int):
            yield Counter(reason=reason, value=value, total=total)


def _first(values: Mapping[str, Any], *keys: str) -> float:
    """The first figure above 0 among some keys; "N/A" and 0 are what is not told."""
    found = [values.get(key) for key in keys]
    known = [float(v) for v in found if isinstance(v, (int, float)) and v > 0]
    if not known:
        what = f"not told ({', '.join(f'{k}: {v!r}' for k, v in zip(keys, found, strict=True))})"
        raise UnknownError(what)
    return known[0]
