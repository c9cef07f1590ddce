"""The registered runtime beside a built-in one, on a trained recurrent network."""

import numpy as np
import pytest
from packaged import file_of

MODEL = file_of("silero_vad", "data/silero_vad_16k_sequence.onnx")


def inputs(batch, rng):
    """Frames of noise that follow each other, and an empty state."""
    return {
        "input": 0.1 * rng.standard_normal((batch, 576), dtype=np.float32),
        "h": np.zeros((1, 1, 128), np.float32),
        "c": np.zeros((1, 1, 128), np.float32),
    }


@pytest.mark.portability(runtimes=["onnx.reference", "onnxruntime.cpu"], batches=[4])
def test_reference(portability):
    """Both are held against records of their own."""
    portability.check(MODEL, inputs=inputs, unit="frames")
