"""Records of one model on eight kinds of device: SYNTHETIC, in the shapes that vendors' tools have.

No figure was measured. Shapes are those that are known of each runtime: one opaque node for a whole
TensorRT engine or DirectML graph, kernels by name where a profiler gives them, no time per kernel
for a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from synthetic import KEY, PARITY, RECORD, figures, path, steady, use

from pytest_portability.kernels import KernelPath
from pytest_portability.outputs import sketch
from pytest_portability.records import Record

OUTPUTS = np.random.default_rng(0).standard_normal(64).astype(np.float32)


def opaque(ep: str, node: str, runtime: str) -> KernelPath:
    """A graph that its provider runs as one node."""
    return path(
        use(node, 1, 1.0, provider=ep),
        source={"MatMul": 72, "Add": 98, "LayerNormalization": 25},
        runtime=runtime,
        caveats=(f"{ep} runs its part as one node: what it fuses is not told",),
    )


def record(
    target: str,
    runtime: str,
    *,
    arch: str,
    platform: str,
    per_second: float,
    effective: str,
    kernels: KernelPath,
    toolchain: Mapping[str, str],
    device_bytes: int | None = None,
    **options: str,
) -> Record:
    """One build, whose yardstick is its own device's."""
    vendor, _, product = target.partition("-")
    wall = figures(None, steady(8 / per_second * 1000))
    noise = np.random.default_rng(len(target)).standard_normal(OUTPUTS.shape) * 1e-4
    parity = replace(
        PARITY, error_rel=5e-4, sketches={"y": sketch(OUTPUTS + noise.astype(np.float32))}
    )
    key = replace(KEY, model="minilm", target=target, runtime=runtime)
    return replace(
        RECORD,
        key=key,
        vendor=vendor,
        arch=arch,
        product=product.upper(),
        platform=platform,
        effective=effective,
        toolchain=toolchain,
        options=options,
        providers={use_.kernel.provider: use_.launches for use_ in kernels.uses},
        threads=None,
        figures=replace(
            wall,
            throughput=per_second,
            yardstick=f"gemm-3072+64-float16 {platform}",
            yardstick_s=math.nan if platform == "dml" else 1e-3,
            memory_device_bytes=device_bytes,
            memory_arena_bytes=None,
        ),
        path=kernels,
        parity=parity,
    )


def inductor(runtime: str, generated: str, library: str) -> KernelPath:
    """Generated kernels beside a library's."""
    fused: Mapping[str, Any] = {"provider": "inductor", "implementation": "triton"}
    return path(
        use(
            f"{generated}_fused_native_layer_norm", 25, 0.2, absorbs=("native_layer_norm",), **fused
        ),
        use(f"{generated}_fused_gelu", 12, 0.1, absorbs=("gelu",), **fused),
        use("mm", 72, 0.7, provider="inductor", implementation=library, precision="bf16"),
        source={"mm": 72, "native_layer_norm": 25, "gelu": 12},
        runtime=runtime,
    )


def attention(provider: str, runtime: str, precision: str) -> KernelPath:
    """ONNX Runtime's fused transformer kernels."""
    return path(
        use(
            "Attention",
            12,
            0.4,
            provider=provider,
            precision=precision,
            absorbs=("MatMul", "Softmax"),
        ),
        use("SkipLayerNormalization", 24, 0.2, provider=provider, precision=precision),
        use("MatMul", 36, 0.4, provider=provider, precision=precision),
        source={"MatMul": 72, "Softmax": 12, "LayerNormalization": 25},
        runtime=runtime,
    )


VENDORS = (
    record(
        "nvidia-h200",
        "onnxruntime.cuda",
        arch="sm_90",
        platform="cuda",
        per_second=21000,
        effective="fp16",
        kernels=attention("CUDAExecutionProvider", "onnxruntime.cuda", "fp16"),
        toolchain={"onnxruntime": "1.32.0", "cuda": "13.0", "cudnn": "9.14", "driver": "580.95"},
        device_bytes=700 * 2**20,
        use_tf32="0",
    ),
    record(
        "nvidia-h200",
        "onnxruntime.tensorrt",
        arch="sm_90",
        platform="cuda",
        per_second=31000,
        effective="",
        kernels=opaque(
            "TensorrtExecutionProvider",
            "TRTKernel_graph_main",
            "onnxruntime.tensorrt",
        ),
        toolchain={"onnxruntime": "1.32.0", "tensorrt": "10.14", "driver": "580.95"},
        device_bytes=900 * 2**20,
        trt_fp16_enable="1",
    ),
    record(
        "nvidia-h200",
        "torch.compile",
        arch="sm_90",
        platform="cuda",
        per_second=18000,
        effective="bf16",
        kernels=inductor("torch.compile", "triton", "cublas"),
        toolchain={"torch": "2.13.0", "cuda": "13.0", "triton": "3.6.0"},
        device_bytes=800 * 2**20,
    ),
    record(
        "amd-mi300x",
        "onnxruntime.migraphx",
        arch="gfx942",
        platform="rocm",
        per_second=14000,
        effective="",
        kernels=opaque("MIGraphXExecutionProvider", "MIGraphX_main", "onnxruntime.migraphx"),
        toolchain={"onnxruntime": "1.32.0", "rocm": "7.1", "migraphx": "2.14"},
        device_bytes=750 * 2**20,
        migraphx_fp16_enable="1",
    ),
    record(
        "amd-mi300x",
        "torch.compile",
        arch="gfx942",
        platform="rocm",
        per_second=12000,
        effective="bf16",
        kernels=inductor("torch.compile", "triton", "hipblaslt"),
        toolchain={"torch": "2.13.0", "rocm": "7.1", "triton": "3.6.0"},
        device_bytes=850 * 2**20,
    ),
    record(
        "intel-max-1550",
        "openvino",
        arch="xe-hpc",
        platform="xpu",
        per_second=9000,
        effective="fp16",
        kernels=path(
            use("FullyConnected", 72, 0.7, provider="GPU", precision="fp16"),
            use("ScaledDotProductAttention", 12, 0.2, provider="GPU", precision="fp16"),
            use("Reorder", 3, 0.1, provider="GPU", role="layout"),
            runtime="openvino",
        ),
        toolchain={"openvino": "2026.4.1", "driver": "25.40"},
        INFERENCE_PRECISION_HINT="f16",
    ),
    record(
        "apple-m2-max",
        "onnxruntime.coreml",
        arch="m2",
        platform="coreml",
        per_second=2500,
        effective="",
        kernels=opaque("CoreMLExecutionProvider", "CoreML_main", "onnxruntime.coreml"),
        toolchain={"onnxruntime": "1.32.0", "macos": "26.1"},
        ModelFormat="MLProgram",
    ),
    record(
        "qualcomm-x-elite",
        "onnxruntime.dml",
        arch="adreno-x1",
        platform="dml",
        per_second=900,
        effective="",
        kernels=opaque("DmlExecutionProvider", "DmlFusedNode_0", "onnxruntime.dml"),
        toolchain={"onnxruntime": "1.32.0", "directml": "1.15.4"},
    ),
)
