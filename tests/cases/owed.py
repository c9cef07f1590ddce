"""What the bad build of each case is owed: verdict, first cause, and what has to be said of it.

The tests hold the product against this, and so does ``benchmarks/attribution.py``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from example_runs import HARMLESS


@cache
def chooses_bf16() -> bool:
    """Whether OpenVINO chooses bf16 here by itself."""
    import openvino  # noqa: PLC0415 - heavy

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def slow_subnormals() -> bool:
    """Whether products with subnormal values cost time here; there are CPUs that do not mind."""
    left = np.ones((128, 128), np.float32)
    took = []
    for scale in (1, 1e-39):
        right = left * np.float32(scale)
        tries = []
        for _ in range(50):
            began = time.thread_time_ns()
            np.einsum("ij,jk->ik", left, right)  # by a loop in this thread, not by a pool
            tries.append(time.thread_time_ns() - began)
        took.append(min(tries))
    return took[1] > 2 * took[0]


def caps_memory() -> bool:
    """Whether the address space of a process can be limited here."""
    return sys.platform.startswith("linux")


@dataclass(frozen=True, slots=True)
class Owed:
    """What is right.

    Attributes:
        verdicts: words, each of which is.
        causes: words, kinds that the first cause may be of; empty where nothing but the machine
            may be blamed.
        said: a regular expression for what the reason, or the first cause with its evidence, has to
            say.
        anywhere: the same for what any cause may say.
        share: least share of the loss that the first cause has to explain.
        where: whether the fault shows on this machine; where not, nothing may be flagged.
    """

    verdicts: str
    causes: str = ""
    said: str = ""
    anywhere: str = ""
    share: float = 0.0
    where: Callable[[], bool] = lambda: True

    @property
    def shows(self) -> bool:
        """Whether there is something to see on this machine."""
        return self.where()

    @property
    def here(self) -> Owed:
        """What is right on this machine."""
        return self if self.shows else NOTHING


NOTHING = Owed(" ".join(sorted(HARMLESS)))

OVERFLOW = r"overflow or are not numbers.*\d NaN"

OWED: Mapping[str, Mapping[str, Owed]] = {
    "accuracy": {
        "weight_disturbed": Owed("stale", "weights", r"fc2\.weight"),
        "layers_swapped": Owed("stale", "weights", r"fc1\.weight, fc2\.weight"),
        "statistics_not_loaded": Owed("stale", "weights", r"running_mean.*running_var"),
        "all_nan": Owed(
            "parity",
            "data graph",
            r"first to diverge of \d+ nodes: Log \(.*NaN",
            anywhere=r"\b32\b.*\b11\b|\b11\b.*\b32\b",
        ),
        "softmax_overflow": Owed("parity", "data graph", r"NaN|non-finite"),
        "cancellation": Owed("parity", "data graph", "relative L2", anywhere="Mul ×1 → ×2"),
        "dropout": Owed(
            "parity",
            "nondeterminism",
            r"(?s)repeats differ.*training mode.*first to diverge.*Dropout '2'",
        ),
        "sampling": Owed(
            "parity", "nondeterminism", "repeats differ", anywhere="RandomNormalLike ×0 → ×1"
        ),
    },
    "subnormal": {
        # Where subnormal values are slow, they are what is said first of it.
        "decayed_channels": Owed("stale", "weights data", r"fc0\.weight"),
        "almost_pruned": Owed("regressed", "data", "subnormal", where=slow_subnormals),
        "no_longer_flushed": Owed(
            "regressed", "options data", "set_denormal_as_zero", where=slow_subnormals
        ),
    },
    "fusions": {
        "layer_norm": Owed("regressed", "fusion", "LayerNormalization ×6", share=0.5),
        "batch_norm": Owed("regressed", "fusion", "BatchNormalization ×6", share=0.5),
        # No kernel is fused across types: the type comes first.
        "products": Owed("regressed", "precision", "fp32 → fp64: MatMul ×4", share=0.5),
        "attention": Owed("regressed", "fusion", "scaled_dot_product|flash", share=0.5),
    },
    "harmless": dict.fromkeys(
        (
            *("external", "renamed", "reordered", "dynamic", "annotated", "gemms", "opset"),
            *(
                "constants",
                "crowded",
                "padded",
                "symbolic",
                "functions",
                "same",
                "nested",
                "slow_start",
            ),
            *("same_openvino", "compiled", "neighbours"),
        ),
        NOTHING,
    ),
    "memory": {
        "batch": Owed("unfit", "memory", where=caps_memory),
        "arena": Owed("memory", "options memory", r"enable_cpu_mem_arena.*(?i:true)"),
        "tied": Owed("memory", "memory", r"copies.*\b11\b"),
        "kept": Owed("memory", "memory", "buffer|MiB"),
    },
    "options": {
        "level": Owed("regressed", "options", "graph_optimization_level.*disable_all"),
        "optimizers": Owed("regressed", "options", "disabled_optimizers.*GeluFusion"),
        "sdpa": Owed("regressed", "options", "sdpa.*math"),
        "backend": Owed("regressed", "options", "backend.*eager"),
        # All of it ran eagerly, for a break inside a loop.
        "declined": Owed("placement", "launches fallback", "(?i:graph break|for/while loop)"),
        "breaks": Owed("regressed", "launches", "left part of the model eager|graph breaks"),
        "gelu": Owed("regressed", "fusion", "Gelu"),
        "transposes": Owed("regressed", "layout", "Transpose"),
        "copies": Owed("regressed", "layout", "copy|clone|contiguous"),
    },
    "placement": {
        # Not the many times faster build that it looks like.
        "careless": Owed("error", "", "clock|synchronize"),
        "elsewhere": Owed("placement", "fallback", "FakeProvider"),
        "partly": NOTHING,
        "costly": Owed("regressed", "fallback", "Tanh"),
    },
    "precision": {
        # The type is the cause, and what it cannot hold the effect.
        "overflow": Owed("parity", "precision", "fp32 → fp16", anywhere=OVERFLOW),
        "vanished_epsilon": Owed("parity", "precision", "fp32 → fp16", anywhere=OVERFLOW),
        "tf32_like": Owed("parity", "precision", "relative L2"),
        "autocast": Owed("parity", "precision", "relative L2"),
        "compiled_chain": NOTHING,
        "silent_bf16": Owed("parity", "precision", "fp32 → bf16", where=chooses_bf16),
        # Here another option was asked for, of which the precision is a consequence.
        "accuracy_mode_lost": Owed(
            "parity", "options precision", anywhere="fp32 → bf16", where=chooses_bf16
        ),
        "half_weights": Owed(
            "stale",
            "weights precision graph",
            r"conv0\.weight",
            anywhere=r"(?ms)(?=.*Cast ×0 → ×2)(?=.*changed: conv0\.weight, conv1\.weight, "
            r"conv2\.weight, conv3\.weight$)",
        ),
        "small_scale": Owed("parity", "quantization", "such as scales or zero points"),
        "zero_point": Owed("parity", "quantization", "such as scales or zero points"),
        "weight_scale": Owed("parity", "quantization", "such as scales or zero points"),
        "activations_quantised": Owed(
            "parity", "quantization", "QuantizeLinear", anywhere="QuantizeLinear ×0 → ×2"
        ),
    },
    "same_values": dict.fromkeys(
        (
            *("initialisers_turned", "weights_as_nodes", "weights_transposed"),
            *("held_by_float16", "same_nan", "dropout_at_rest"),
        ),
        NOTHING,
    ),
    "signature": {
        "output_dtypes": Owed(
            "interface", "interface", r"'logits' is float16.*float32.*'label' is int32.*int64"
        ),
        "output_order": Owed(
            "interface", "interface", r"order.*'label', 'logits'.*'logits', 'label'"
        ),
        "output_shape": Owed("interface", "interface", r"'label' has shape \(32,\).*\(32, 1\)"),
        "input_dtype": Owed("interface", "interface", "input 'ids' is int32.*int64"),
        "input_name": Owed("interface", "interface", "'ids'.*missing.*'tokens'"),
    },
}
"""Module with ``CASES`` → name of a case → what it is owed. ``threads`` is not among the options:
what is right depends on whether a second core is free."""
