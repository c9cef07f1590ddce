"""A recurrent network with its state as input: voice activity, one frame of 32 ms at a time."""

import numpy as np
import pytest
from packaged import file_of

MODEL = file_of("silero_vad", "data/silero_vad_16k_op15.onnx")
SAMPLE_RATE = 16000
FRAME = 576  # 512 new samples behind 64 of the frame before


def feed(frames, state):
    """The model's inputs for frames float32 (batch, 576) and state float32 (2, batch, 128)."""
    return {"input": frames, "state": state, "sr": np.array(SAMPLE_RATE, np.int64)}


def inputs(batch, rng):
    """Noise, and the state of a fresh clip."""
    frames = 0.1 * rng.standard_normal((batch, FRAME), dtype=np.float32)
    return feed(frames, np.zeros((2, batch, 128), np.float32))


def false_alarms(predict):
    """Highest probability of speech over a second of noise and one of a pure tone."""
    seconds = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    clips = [
        0.01 * np.random.default_rng(1).standard_normal(SAMPLE_RATE),
        0.3 * np.sin(2 * np.pi * 1000 * seconds),
    ]
    highest = 0.0
    state = np.zeros((2, len(clips), 128), np.float32)
    sound = np.pad(np.stack(clips), ((0, 0), (64, 0))).astype(np.float32)
    for start in range(0, SAMPLE_RATE - FRAME, 512):
        outputs = predict(feed(sound[:, start : start + FRAME], state))
        state = outputs["stateN"]
        highest = max(highest, float(outputs["output"].max()))
    return {"highest_probability": highest}


@pytest.mark.portability(batches=[8], runtimes=["onnxruntime.*"])
def test_silero(portability):
    """The state is carried by the test's own metric; ``check`` sees one step."""
    portability.check(MODEL, inputs=inputs, metric=false_alarms, unit="frames")
