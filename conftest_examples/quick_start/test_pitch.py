"""Quick start: hold one ONNX file, a convolutional network that hears notes, against its record."""

import numpy as np
import pytest
from packaged import file_of

MODEL = file_of("basic_pitch", "saved_models/icassp_2022/nmp.onnx")
SAMPLE_RATE = 22050
SAMPLES = 43844
NOTES = range(45, 85, 2)
LOWEST_NOTE = 21


def tone(note):
    """About two seconds of a decaying tone with four overtones, float32 (samples, 1)."""
    seconds = np.arange(SAMPLES) / SAMPLE_RATE
    frequency = 440 * 2 ** ((note - 69) / 12)
    wave = sum(np.sin(2 * np.pi * frequency * k * seconds) / k for k in range(1, 6))
    wave = wave * np.exp(-seconds)
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)[:, None]


def inputs(batch, rng):
    """As many tones as the batch holds."""
    return [np.stack([tone(NOTES[i % len(NOTES)]) for i in range(batch)])]


def notes_heard(predict):
    """Share of notes named rightly, and by how much the right one stands out on average."""
    activations = predict([np.stack([tone(note) for note in NOTES])])["StatefulPartitionedCall:1"]
    strength = activations[:, 10:120].mean(axis=1)
    right = np.array(NOTES) - LOWEST_NOTE
    rows = np.arange(len(right))
    others = strength.copy()
    others[rows, right] = 0
    return {
        "accuracy": float((strength.argmax(axis=1) == right).mean()),
        "margin": float((strength[rows, right] - others.max(axis=1)).mean()),
    }


@pytest.mark.portability(runtimes=["onnxruntime.*", "openvino"], precisions=["fp32"])
def test_pitch(portability):
    """The model is as fast, as accurate and as small as its record says."""
    portability.check(MODEL, inputs=inputs, metric=notes_heard)
