"""The package ``onnxruntime`` itself: importing it, its plugin providers and their devices."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pytest_portability.errors import RuntimeUnavailable
from pytest_portability.runtimes import onnxruntime_providers as providers
from pytest_portability.targets import Absent, Device


def load(*, cuda: bool = False) -> Any:
    """The module ``onnxruntime``.

    Args:
        cuda: whether CUDA's libraries are wanted, which may lie in packages of NVIDIA's where only
            ONNX Runtime itself looks for them, and only when asked to (``preload_dlls`` in its
            documentation).

    Raises:
        RuntimeUnavailable: not installed, or present but unusable.
    """
    try:
        import onnxruntime
    except Exception as exc:
        msg = f"onnxruntime is present but unusable: {type(exc).__name__}: {exc}"
        if isinstance(exc, ModuleNotFoundError) and exc.name == "onnxruntime":
            advice = "pip install onnxruntime (or your vendor's build of it)"
            msg = f"onnxruntime is not installed: {advice}"
        raise RuntimeUnavailable(msg) from exc
    if not hasattr(onnxruntime, "InferenceSession"):
        msg = "onnxruntime is present but unusable: the package holds no InferenceSession"
        raise RuntimeUnavailable(msg)
    if cuda and hasattr(onnxruntime, "preload_dlls"):  # since 1.21; does nothing in other builds
        onnxruntime.preload_dlls()
    return onnxruntime


def register_plugins(ort: Any) -> dict[str, str]:
    """Register every installed plugin provider; package → why it could not be.

    A registration is for the life of the process: unregistering one while a session is referenced
    aborts it (seen with WebGPU 0.4.0).
    """
    failures = {}
    register = getattr(ort, "register_execution_provider_library", None)
    packages = [m.name for m in pkgutil.iter_modules() if m.name.startswith("onnxruntime_ep_")]
    for package in sorted(packages):
        if register is None:
            failures[package] = f"onnxruntime {ort.__version__} is too old for plugin providers"
            continue
        try:
            register(package, importlib.import_module(package).get_library_path())
        except Exception as exc:  # noqa: BLE001 # a broken plugin may raise anything
            if "already registered" not in str(exc):
                failures[package] = f"{type(exc).__name__}: {words(exc)}"
    return failures


class OnnxRuntimeLibrary:
    """ONNX Runtime as a source of devices; to be asked in a child process."""

    def devices(self) -> tuple[Sequence[Device], Sequence[Absent]]:
        """Devices of built-in and plugin providers, and the providers without one.

        Raises:
            RuntimeUnavailable: onnxruntime is not installed, or present but unusable.
        """
        ort = load(cuda=True)
        failures = register_plugins(ort)
        listed = providers.offered(ep_devices(ort))
        devices = [providers.device_of(*entry) for entry in listed]
        covered = {ep for ep, _, _ in listed}
        folder = Path(ort.__file__).parent / "capi"
        more, absents = providers.built_in(ort.get_available_providers(), covered, folder=folder)
        absents += [
            Absent(name=package, reason=f"present but unusable: {reason}")
            for package, reason in failures.items()
        ]
        return [*devices, *more], [*absents, *without_device(covered, failures)]


def without_device(covered: Collection[str], failed: Collection[str]) -> list[Absent]:
    """Installed plugins that took no device of this machine.

    Args:
        covered: providers that listed devices.
        failed: packages that could not be registered, which are left out.
    """
    absents = []
    for module in pkgutil.iter_modules():
        if not module.name.startswith("onnxruntime_ep_") or module.name in failed:
            continue
        package = importlib.import_module(module.name)
        single = getattr(package, "get_ep_name", lambda: "")
        names = getattr(package, "get_ep_names", lambda single=single: [single()])()
        if not set(names) & set(covered):
            reason = f"no device: {', '.join(names)} loaded and found no hardware that it accepts"
            absents.append(Absent(name=module.name, reason=reason))
    return absents


def ep_devices(ort: Any) -> Sequence[Any]:
    """Every ``OrtEpDevice``; none where ONNX Runtime is too old to list them."""
    found: Sequence[Any] = getattr(ort, "get_ep_devices", tuple)()
    return found


LIBRARY = OnnxRuntimeLibrary()


def words(exc: BaseException) -> str:
    """ONNX Runtime's own words, without source paths of its build machine."""
    text = re.sub(r"/onnxruntime_src/\S+:\d+ .*?(?:\) |\n)", "", str(exc))
    return " ".join(text.split()) or type(exc).__name__


__all__ = [
    "LIBRARY",
    "OnnxRuntimeLibrary",
    "ep_devices",
    "load",
    "register_plugins",
    "without_device",
    "words",
]
