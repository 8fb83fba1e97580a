"""Relation-aware attention straight from the paper: loops over float64 numbers, nothing shared.

Shaw, Uszkoreit and Vaswani 2018, equations (3) and (4) and section 3.2; the gradients are those
equations differentiated by hand.
"""
import math

import numpy as np


def label(i, j, k):
    """clip(j - i, -k, k), counted from 0."""
    return max(-k, min(k, j - i)) + k


def row(table, head, i, j):
    """The vector a_ij, from a table of one head or of all; zero where there is none."""
    if table is None:
        return 0.0
    table = table[head] if table.ndim == 3 else table
    return table[label(i, j, len(table) // 2)]


def attention(q, k, v, keys=None, values=None, bias=None, offset=0):
    """Equations (3) and (4).

    Args:
      q: [batch, heads, len_q, depth].
      k: [batch, heads, len_k, depth].
      v: [batch, heads, len_k, depth_v].
      keys: a^K, [2k + 1, depth] or [heads, 2k + 1, depth], or None.
      values: a^V, likewise with depth_v, or None.
      bias: [batch, heads, len_q, len_k], or None.
      offset: position of the first query.

    Returns:
      z [batch, heads, len_q, depth_v] and alpha [batch, heads, len_q, len_k].
    """
    batch, heads, len_q, depth = q.shape
    len_k = k.shape[2]
    z = np.zeros((batch, heads, len_q, v.shape[3]))
    alpha = np.zeros((batch, heads, len_q, len_k))
    for b in range(batch):
        for h in range(heads):
            for i in range(len_q):
                e = np.zeros(len_k)
                for j in range(len_k):
                    key = k[b, h, j] + row(keys, h, i + offset, j)
                    e[j] = q[b, h, i] @ key / math.sqrt(depth)
                    if bias is not None:
                        e[j] += bias[b, h, i, j]
                alpha[b, h, i] = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
                for j in range(len_k):
                    z[b, h, i] += alpha[b, h, i, j] * (v[b, h, j] + row(values, h, i + offset, j))
    return z, alpha


def gradients(dz, q, k, v, keys=None, values=None, bias=None, offset=0):
    """Derivatives of sum(dz * z) by q, k, v, keys and values (None for a table that is None)."""
    _, alpha = attention(q, k, v, keys, values, bias, offset)
    batch, heads, len_q, depth = q.shape
    len_k = k.shape[2]
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dkeys = None if keys is None else np.zeros_like(keys)
    dvalues = None if values is None else np.zeros_like(values)
    for b in range(batch):
        for h in range(heads):
            for i in range(len_q):
                a = alpha[b, h, i]
                da = np.array([dz[b, h, i] @ (v[b, h, j] + row(values, h, i + offset, j))
                               for j in range(len_k)])
                de = a * (da - a @ da) / math.sqrt(depth)
                for j in range(len_k):
                    dq[b, h, i] += de[j] * (k[b, h, j] + row(keys, h, i + offset, j))
                    dk[b, h, j] += de[j] * q[b, h, i]
                    dv[b, h, j] += a[j] * dz[b, h, i]
                    if keys is not None:
                        row(dkeys, h, i + offset, j)[:] += de[j] * q[b, h, i]
                    if values is not None:
                        row(dvalues, h, i + offset, j)[:] += a[j] * dz[b, h, i]
    return dq, dk, dv, dkeys, dvalues


def causal(len_q, len_k, offset=0):
    """[1, 1, len_q, len_k], -1e9 where a key lies after its query."""
    bias = np.zeros((1, 1, len_q, len_k))
    for i in range(len_q):
        bias[0, 0, i, i + offset + 1:] = -1e9
    return bias


def padded(lengths, len_k):
    """[batch, 1, 1, len_k], -1e9 beyond the length of each sentence."""
    bias = np.zeros((len(lengths), 1, 1, len_k))
    for b, length in enumerate(lengths):
        bias[b, 0, 0, length:] = -1e9
    return bias


def packed(segments):
    """[batch, 1, length, length], -1e9 between sentences that share a row."""
    segments = np.asarray(segments)
    return np.where(segments[:, None, :, None] == segments[:, None, None, :], 0.0, -1e9)


def sinusoid(position, channels):
    """Vaswani et al. 2017, section 3.5, T2T's order: half sines, half cosines, 1 to 10,000."""
    half = channels // 2
    rates = [10000.0 ** (-c / max(half - 1, 1)) for c in range(half)]
    return np.array([math.sin(position * rate) for rate in rates] +
                    [math.cos(position * rate) for rate in rates] + [0.0] * (channels % 2))
