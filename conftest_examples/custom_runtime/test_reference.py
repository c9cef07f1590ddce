"""The registered runtime beside a built-in one, on a trained recurrent network."""

import numpy as np
import pytest
from packaged import file_of

MODEL = file_of("silero_vad", "data/silero_vad_op18_ifless.onnx")


def inputs(batch, rng):
    """One frame of noise and an empty state."""
    return {
        "input": 0.1 * rng.standard_normal((batch, 576), dtype=np.float32),
        "state": np.zeros((2, batch, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


@pytest.mark.portability(runtimes=["onnx.reference", "onnxruntime.cpu"], batches=[2])
def test_reference(portability):
    """Both are held against records of their own."""
    portability.check(MODEL, inputs=inputs)
