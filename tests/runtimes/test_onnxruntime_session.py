"""What opening a session adds to the options: folders for what is compiled, and the device."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_models
import pytest

from pytest_portability import models
from pytest_portability.errors import RuntimeUnavailable, UsageError
from pytest_portability.runtimes import Request
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes import onnxruntime_options as options_module
from pytest_portability.runtimes import onnxruntime_providers as providers
from pytest_portability.runtimes import onnxruntime_session as session_module


class FakeOrt:
    """What ``open_session`` needs of ONNX Runtime; refuses a provider option it does not know."""

    def __init__(self, unknown: str = "") -> None:
        self.unknown = unknown
        self.given: list[dict[str, str]] = []

    def InferenceSession(  # noqa: N802 - ONNX Runtime's name
        self, source: object, options: object, *, providers: Any, enable_fallback: int
    ) -> object:
        """Keep the provider's options."""
        del source, options, enable_fallback
        ((_, given),) = providers
        self.given.append(given)
        if self.unknown in given:
            msg = f'Unknown provider option: "{self.unknown}".'
            raise RuntimeError(msg)
        return object()


class TestCaches:
    """What a provider compiled is kept for the next repeat."""

    @staticmethod
    def given(ort: FakeOrt, short: str, asked: Request) -> list[dict[str, str]]:
        """Provider options of each session that was tried."""
        provider = providers.named(short)
        chosen = options_module.in_force(provider, asked)
        session_module.open_session(
            ort, session_module.Choice(provider), asked, chosen, lambda: None
        )
        assert not any("portability-cache" in text for text in chosen.as_text().values())
        return ort.given

    @staticmethod
    def asked(folder: Path, made: onnx.ModelProto, **more: Any) -> Request:
        """A request for a card."""
        model = models.load(made)
        return Request(model=model, handle="gpu:0", cache_dir=str(folder), **more)

    def test_tensorrt_keeps_timings_and_engines_of_fixed_shapes(self, tmp_path: Path) -> None:
        """In a folder for this model; an engine of a symbolic shape would depend on its history."""
        folder = tmp_path / "portability-cache"
        made = onnx_models.mlp()
        (first,) = self.given(FakeOrt(), "tensorrt", self.asked(folder, made, platform="cuda"))
        assert first["trt_timing_cache_enable"] == "1"
        assert Path(first["trt_timing_cache_path"]).is_dir()
        assert "trt_engine_cache_enable" not in first
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
        (fixed,) = self.given(FakeOrt(), "tensorrt", self.asked(folder, made, platform="cuda"))
        assert fixed["trt_engine_cache_enable"] == "1"
        assert Path(fixed["trt_engine_cache_path"]).is_dir()
        assert fixed["trt_engine_cache_path"] != first["trt_timing_cache_path"]

    def test_other_weights_precisions_and_options_have_other_folders(self, tmp_path: Path) -> None:
        """Providers name what they store by the graph's names alone."""
        made, other = onnx_models.mlp(), onnx_models.mlp()
        weights = other.graph.initializer[0]
        changed = onnx.numpy_helper.to_array(weights) + 1
        weights.CopyFrom(onnx.numpy_helper.from_array(changed, weights.name))
        requests = [
            self.asked(tmp_path, made, platform="rocm"),
            self.asked(tmp_path, made, platform="rocm"),
            self.asked(tmp_path, other, platform="rocm"),
            self.asked(tmp_path, made, platform="rocm", precision="fp16"),
            self.asked(tmp_path, made, platform="rocm", options={"provider": {"x": "1"}}),
        ]
        found = [self.given(FakeOrt(), "migraphx", asked)[0] for asked in requests]
        folders = [given["migraphx_model_cache_dir"] for given in found]
        assert folders[0] == folders[1]
        assert len(set(folders)) == 4

    def test_what_the_user_set_stays(self, tmp_path: Path) -> None:
        """Folder and device table alike."""
        mine = {"provider": {"migraphx_model_cache_dir": "/mine"}}
        asked = self.asked(tmp_path, onnx_models.mlp(), platform="rocm", options=mine)
        (given,) = self.given(FakeOrt(), "migraphx", asked)
        assert given["migraphx_model_cache_dir"] == "/mine"
        asked = self.asked(tmp_path, onnx_models.mlp(), platform="xpu", precision="fp16")
        (given,) = self.given(FakeOrt(), "openvino", asked)
        card = json.loads(given["load_config"])["GPU"]
        assert card["INFERENCE_PRECISION_HINT"] == "f16"
        assert card["CACHE_DIR"].startswith(str(tmp_path))

    def test_a_build_that_lacks_the_option_goes_without(self, tmp_path: Path) -> None:
        """An unknown provider option is an error, so it is tried again."""
        asked = self.asked(tmp_path, onnx_models.mlp(), platform="rocm")
        tried = self.given(FakeOrt("migraphx_model_cache_dir"), "migraphx", asked)
        assert len(tried) == 2
        assert tried[1] == {"device_id": "0"}
        with pytest.raises(RuntimeError, match="Unknown provider option"):
            self.given(
                FakeOrt("bad"),
                "migraphx",
                replace(asked, options={"provider": {"bad": "1"}}),
            )

    def test_external_weights_are_part_of_a_model(self, tmp_path: Path) -> None:
        """By size and time: they may be huge."""
        path = onnx_models.save_external(onnx_models.mlp(), tmp_path / "net.onnx")
        asked = Request(
            model=models.load(path), handle="gpu:0", platform="rocm", cache_dir=str(tmp_path)
        )
        (first,) = self.given(FakeOrt(), "migraphx", asked)
        (data,) = (f for f in tmp_path.iterdir() if f.is_file() and f != path)
        os.utime(data, (1, 1))
        (second,) = self.given(FakeOrt(), "migraphx", asked)
        assert first != second

    def test_nothing_is_kept_without_a_folder_or_on_a_cpu(self, tmp_path: Path) -> None:
        """There compiling is quick."""
        asked = self.asked(tmp_path, onnx_models.mlp(), platform="cpu")
        assert self.given(FakeOrt(), "openvino", asked) == [{"device_type": "CPU"}]
        without = replace(asked, cache_dir="", platform="rocm")
        assert self.given(FakeOrt(), "migraphx", without) == [{"device_id": "0"}]


class TestOpenVinoBuiltIn:
    """The wheel onnxruntime-openvino: the provider lists no devices."""

    @staticmethod
    def ort(*plugin: str) -> Any:
        """ONNX Runtime as that wheel has it; a registered plugin brings devices of these kinds."""
        found = [
            SimpleNamespace(
                ep_name="OpenVINOExecutionProvider",
                ep_metadata={},
                device=SimpleNamespace(type=f"OrtHardwareDeviceType.{kind}", metadata={}),
            )
            for kind in plugin
        ]
        available = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
        return SimpleNamespace(
            get_available_providers=lambda: available, get_ep_devices=lambda: found
        )

    @staticmethod
    def asked(handle: str = "cpu", **provider: str) -> Request:
        """A request with these options of the provider."""
        model = models.load(onnx_models.mlp())
        platform = "cpu" if handle == "cpu" else "xpu"
        options = {"provider": provider}
        return Request(model=model, handle=handle, platform=platform, options=options)

    def test_it_is_told_to_take_the_cpu(self) -> None:
        """Which is what it is measured as; the user may say so, too."""
        for asked in (self.asked(), self.asked(device_type="CPU", num_streams="1")):
            choice = session_module.choose(self.ort(), "openvino", asked)
            assert choice == session_module.Choice(providers.named("openvino"))
            fake = FakeOrt()
            chosen = options_module.in_force(choice.provider, asked)
            session_module.open_session(fake, choice, asked, chosen, lambda: None)
            (given,) = fake.given
            assert given == {"device_type": "CPU"} | dict(asked.options["provider"])

    @pytest.mark.parametrize(
        ("name", "value"),
        [("device_type", "GPU"), ("device_type", "HETERO:GPU,CPU"), ("device_id", "NPU")],
    )
    def test_another_device_is_refused(self, name: str, value: str) -> None:
        """Its speed would be the CPU's record."""
        with pytest.raises(UsageError) as caught:
            session_module.choose(self.ort(), "openvino", self.asked(**{name: value}))
        assert str(caught.value) == (
            f"option {name!r} of onnxruntime.openvino must be 'CPU'; given was {value!r}: the "
            "provider that is built into this onnxruntime lists no devices, and is measured as the "
            "CPU. For a GPU or an NPU use the plugin (pip install onnxruntime-ep-openvino), or the "
            "runtime 'openvino'"
        )

    def test_a_gpu_is_the_plugin_s(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Which is registered where one is wanted; without it there is none."""
        told: list[str] = []
        failing = {"onnxruntime_ep_openvino": "OSError: no libze_loader.so.1"}

        def register(ort: Any) -> dict[str, str]:
            del ort
            told.append("plugins")
            return failing

        monkeypatch.setattr(library, "register_plugins", register)
        with pytest.raises(RuntimeUnavailable) as caught:
            session_module.choose(self.ort(), "openvino", self.asked("gpu:0"))
        assert str(caught.value) == (
            "onnxruntime.openvino has no device 'gpu:0'; it has: cpu; "
            "onnxruntime_ep_openvino: OSError: no libze_loader.so.1"
        )
        failing = {}
        choice = session_module.choose(self.ort("CPU", "GPU"), "openvino", self.asked("gpu:0"))
        assert choice.device.device.type == "OrtHardwareDeviceType.GPU"
        assert told == ["plugins", "plugins"]
