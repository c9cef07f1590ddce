"""A test whose environment, causes and report the conftest beside it extends."""

import numpy as np
import pytest
from packaged import file_of

MODEL = file_of("silero_vad", "data/silero_vad_16k_op15.onnx")


@pytest.mark.portability(batches=[4], runtimes=["onnxruntime.cpu"])
def test_vad(portability):
    """``config=`` keeps what the model was trained or prepared with beside its figures."""
    portability.check(
        MODEL,
        inputs=lambda batch, rng: [
            0.1 * rng.standard_normal((batch, 576), dtype=np.float32),
            np.zeros((2, batch, 128), np.float32),
            np.array(16000, np.int64),
        ],
        config={"resample": "polyphase 48 kHz to 16 kHz"},
    )
