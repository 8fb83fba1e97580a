"""Training steps in plain PyTorch, for comparison: shapes, weights and optimizer as rpr's absolute
model. PyTorch is not a dependency of the project, and its Python may be another than this one.

  python torch_step.py '{"hparams": {...}, "symbols": 32768, "device": "gpu", ...}'

builds the model. Each line of standard input is the path of a batch (.npz with int32 `inputs` and
`targets`, [sentences, length, 1, 1]); after a step with it, its seconds and its CPU seconds are
printed.
"""
import functools
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class _Attention(nn.Module):
    """Multi-head attention without biases, as T2T's."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.output = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None
                ) -> torch.Tensor:
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for layer, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        z = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.output(z.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    """A layer of the encoder or, with attention to the encoder, of the decoder."""

    def __init__(self, hparams: Any, has_memory: bool) -> None:
        super().__init__()
        hidden, width, heads = hparams.hidden_size, hparams.filter_size, hparams.num_heads
        self.attention = _Attention(hidden, heads)
        self.cross = _Attention(hidden, heads) if has_memory else None
        self.dense = nn.Sequential(nn.Linear(hidden, width), nn.ReLU(), nn.Linear(width, hidden))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, 1e-6) for _ in range(2 + has_memory))
        self.is_pre_norm = hparams.layer_preprocess_sequence == "n"
        self.dropout = nn.Dropout(hparams.layer_prepostprocess_dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None,
                memory: torch.Tensor | None = None, cross_mask: torch.Tensor | None = None
                ) -> torch.Tensor:
        parts = [lambda y: self.attention(y, y, mask), self.dense]
        if self.cross is not None:
            parts.insert(1, lambda y: self.cross(y, memory, cross_mask))
        for part, norm in zip(parts, self.norms, strict=True):
            if self.is_pre_norm:
                x = x + self.dropout(part(norm(x)))
            else:
                x = norm(x + self.dropout(part(x)))
        return x


class _Loss(nn.Module):
    """The model and its loss, with one matrix for embeddings and logits."""

    def __init__(self, hparams: Any, symbols: int) -> None:
        super().__init__()
        hidden, self.smoothing = hparams.hidden_size, hparams.label_smoothing
        self.table = nn.Parameter(torch.randn(symbols, hidden) * hidden ** -0.5)
        self.encoder, self.decoder = (nn.ModuleList(
            _Layer(hparams, has_memory) for _ in range(hparams.num_hidden_layers))
            for has_memory in (False, True))
        self.last = nn.ModuleList(
            nn.LayerNorm(hidden, 1e-6) if hparams.layer_preprocess_sequence == "n"
            else nn.Identity() for _ in range(2))
        self.dropout = nn.Dropout(hparams.layer_prepostprocess_dropout)
        at = torch.arange(1024)[:, None] / 10000 ** torch.linspace(0, 1, hidden // 2)
        self.register_buffer("sinusoids", torch.cat([at.sin(), at.cos()], dim=1))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        mask = (inputs != 0)[:, None, None, :]
        x = self._embed(inputs)
        for layer in self.encoder:
            x = layer(x, mask)
        shifted = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
        x, y = self.last[0](x), self._embed(shifted)
        for layer in self.decoder:
            y = layer(y, None, x, mask)
        logits = functional.linear(self.last[1](y), self.table)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(),
                                        ignore_index=0, label_smoothing=self.smoothing)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        x = functional.embedding(ids, self.table) * self.table.shape[1] ** 0.5
        return self.dropout(x + self.sinusoids[:ids.shape[1]])


class TorchStep:
    """One model with its optimizer; a call is one training step.

    Args:
      hparams: those of the absolute model.
      symbols: size of the vocabulary.
      device: `cpu` or `gpu`.
      compiled: whether `torch.compile` compiles forward and backward.
      half: compute in bfloat16, with float32 weights, by autocast.
    """

    def __init__(self, hparams: dict[str, Any], symbols: int, device: str, compiled: bool,
                 half: bool) -> None:
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = True         # as TensorFlow does
        self._device = torch.device("cuda" if device == "gpu" else "cpu")
        model = _Loss(SimpleNamespace(**hparams), symbols).to(self._device)
        self._half = half
        self._optimizer = torch.optim.Adam(
            model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=device == "gpu")
        self._loss = torch.compile(model, dynamic=False) if compiled else model

    def __call__(self, batch: dict[str, np.ndarray]) -> tuple[float, float]:
        """Wall-clock and CPU seconds of a step."""
        wall, work = time.perf_counter(), time.process_time()
        inputs, targets = (torch.from_numpy(batch[side][:, :, 0, 0].astype(np.int64))
                           .to(self._device) for side in ("inputs", "targets"))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            loss = self._loss(inputs, targets)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        assert np.isfinite(loss.item())                      # waits for the device
        return time.perf_counter() - wall, time.process_time() - work


@functools.cache
def _batch(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def main() -> None:
    step = TorchStep(**json.loads(sys.argv[1]))
    for line in sys.stdin:
        print(*step(_batch(line.rstrip("\n"))), flush=True)


if __name__ == "__main__":
    main()
