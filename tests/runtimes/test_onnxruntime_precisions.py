"""How each of ONNX Runtime's providers is asked for a precision, and what tells TF32."""

from __future__ import annotations

import json
from types import SimpleNamespace

import onnx_models
import pytest

from pytest_portability import models
from pytest_portability.errors import Unsupported
from pytest_portability.kernels import Kernel, KernelUse
from pytest_portability.runtimes import Request, tf32
from pytest_portability.runtimes import onnxruntime as adapter
from pytest_portability.runtimes import onnxruntime_options as options_module
from pytest_portability.runtimes import onnxruntime_providers as providers
from pytest_portability.runtimes import onnxruntime_session as session_module


class TestPrecisions:
    """How each provider is asked for a precision."""

    @pytest.mark.parametrize(
        ("runtime", "precision", "switches"),
        [
            ("cuda", "fp32", {"use_tf32": "0"}),
            ("cuda", "tf32", {"use_tf32": "1"}),
            ("tensorrt", "fp16", {"trt_fp16_enable": "1"}),
            ("migraphx", "bf16", {"migraphx_bf16_enable": "1"}),
            ("rocm", "fp16", {}),
        ],
    )
    def test_the_switch_is_the_provider_s(
        self, runtime: str, precision: str, switches: dict[str, str]
    ) -> None:
        """And the user's option of the same name wins."""
        provider = providers.named(runtime)
        asked = Request(
            model=models.Model(kind="onnx", value=None),
            handle="gpu:0",
            platform=provider.platform,
            precision=precision,
        )
        assert provider.supports(precision) == ""
        found = options_module.in_force(provider, asked)
        assert found.provider == switches
        assert found.config == {}, "on an accelerator the host's threads may spin"

    def test_the_user_s_device_table_is_merged_with_the_precision(self) -> None:
        """Both reach OpenVINO through the same option."""
        asked = Request(
            model=models.Model(kind="onnx", value=None),
            handle="cpu",
            platform="cpu",
            precision="fp32",
            options={"provider": {"load_config": {"CPU": {"INFERENCE_NUM_THREADS": 1}}}},
        )
        found = options_module.in_force(providers.named("openvino"), asked)
        text = found.provider["load_config"]
        assert '"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}' in text

    def test_files_are_converted_where_there_is_no_switch(self) -> None:
        """The CUDA provider computes in the file's types, TensorRT is told."""
        assert adapter.runtime("onnxruntime.cuda").converted == ("bf16", "fp16")
        assert adapter.runtime("onnxruntime.tensorrt").converted == ()
        assert adapter.runtime("onnxruntime.cpu").converted == ()

    def test_what_a_provider_cannot_switch_is_refused_with_a_reason(self) -> None:
        """Core ML decides by itself; TF32 belongs to NVIDIA."""
        assert "Core ML picks" in adapter.runtime("onnxruntime.coreml").supports("fp32", "mps")
        assert adapter.runtime("onnxruntime.rocm").supports("tf32", "rocm") == (
            "TF32 is a mode of NVIDIA GPUs"
        )

    @pytest.mark.parametrize("short", ["tensorrt", "nvtensorrtrtx"])
    def test_tensorrt_in_fp32_needs_the_environment(
        self, short: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No option switches its TF32 off."""
        asked = Request(
            model=models.load(onnx_models.mlp()), handle="gpu:0", platform="cuda", precision="fp32"
        )
        choice = session_module.Choice(providers.named(short))
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
        with pytest.raises(Unsupported, match=rf"{short}: fp32: .* has NVIDIA_TF32_OVERRIDE=0"):
            session_module.check_precision(choice, asked)
        assert providers.needs_environment(choice.provider, "fp16") == ""
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        session_module.check_precision(choice, asked)
        assert "switches TF32 off" in providers.needs_environment(choice.provider, "tf32")

    @pytest.mark.parametrize(
        ("capabilities", "precision", "found"),
        [
            ("FP16 INT8 EXPORT_IMPORT", "fp32", "FP16, INT8, EXPORT_IMPORT"),
            ("FP16 INT8 EXPORT_IMPORT", "fp16", ""),
            ("FP32 FP16 INT8", "fp32", ""),
            ("FP32 FP16 INT8", "bf16", "FP32, FP16, INT8"),
            ("FP16 INT8", "native", ""),
        ],
    )
    def test_a_device_of_openvino_computes_what_it_says(
        self, capabilities: str, precision: str, found: str
    ) -> None:
        """An NPU that lacks fp32 takes the request and computes in fp16."""
        device = SimpleNamespace(ep_metadata={"OPTIMIZATION_CAPABILITIES": capabilities})
        choice = session_module.Choice(providers.named("openvino"), device)
        asked = Request(
            model=models.load(onnx_models.mlp()),
            handle="npu:0",
            platform="npu",
            precision=precision,
        )
        if found:
            words = f"openvino: {precision}: the device says that it computes {found}"
            with pytest.raises(Unsupported, match=words):
                session_module.check_precision(choice, asked)
            return
        session_module.check_precision(choice, asked)
        chosen = options_module.in_force(choice.provider, asked).provider
        hint = {"fp16": "f16", "fp32": "f32"}.get(precision)
        hints = json.loads(chosen.get("load_config", "{}"))
        wanted = {"INFERENCE_PRECISION_HINT": hint}
        assert hints == (dict.fromkeys(("CPU", "GPU", "NPU"), wanted) if hint else {})

    @pytest.mark.parametrize(
        ("short", "options", "op", "machine", "expected"),
        [
            ("cuda", {}, "MatMul", ((9, 0), None), True),
            ("cuda", {"use_tf32": "1"}, "FusedConv", ((8, 0), None), True),
            ("cuda", {"use_tf32": "0"}, "MatMul", ((9, 0), None), False),
            ("cuda", {}, "MatMul", ((9, 0), "0"), False),
            ("cuda", {}, "MatMul", ((7, 5), None), False),
            ("cuda", {}, "MatMul", (None, None), False),
            ("cuda", {}, "LayerNormalization", ((9, 0), None), False),
            ("cpu", {}, "MatMul", ((9, 0), None), False),
            ("rocm", {}, "MatMul", ((9, 0), None), False),
        ],
    )
    def test_the_cuda_provider_uses_tf32_unless_told_otherwise(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        short: str,
        options: dict[str, str],
        op: str,
        machine: tuple[tuple[int, int] | None, str | None],
        expected: bool,
    ) -> None:
        """The tensors' type says float either way."""
        capability, override = machine
        monkeypatch.setattr(tf32, "capability", lambda _index: capability)
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
        if override:
            monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
        assert providers.runs_tf32(providers.named(short), 0, options, op) == expected

    def test_kernels_of_the_cuda_provider_say_tf32(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """``native`` and ``tf32`` do, ``fp32`` switches it off; half precision is what it says."""
        monkeypatch.setattr(tf32, "capability", lambda _index: (9, 0))
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
        found = {}
        for asked in ("native", "tf32", "fp32"):
            made = Request(
                model=models.Model(kind="onnx", value=None),
                handle="gpu:0",
                platform="cuda",
                precision=asked,
            )
            chosen = options_module.in_force(providers.named("cuda"), made)
            for kind in ("fp32", "fp16"):
                kernel = Kernel(provider="CUDAExecutionProvider", op="MatMul", precision=kind)
                use = adapter._in_tf32(KernelUse(kernel=kernel, launches=1), made, chosen)
                found[asked, kind] = use.kernel.precision
        assert found == {
            ("native", "fp32"): "tf32",
            ("native", "fp16"): "fp16",
            ("tf32", "fp32"): "tf32",
            ("tf32", "fp16"): "fp16",
            ("fp32", "fp32"): "fp32",
            ("fp32", "fp16"): "fp16",
        }

    def test_a_card_before_ampere_has_no_tf32(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A skip with its reason, not a placement failure."""
        monkeypatch.setattr(tf32, "capability", lambda _index: (7, 5))
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
        asked = Request(
            model=models.load(onnx_models.mlp()),
            handle="gpu:0",
            platform="cuda",
            precision="tf32",
        )
        choice = session_module.Choice(providers.named("cuda"))
        with pytest.raises(Unsupported, match="tf32: the device is an sm_75; TF32 begins with"):
            session_module.check_precision(choice, asked)
