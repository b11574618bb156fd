"""Whether the compiled pieces compute what numpy computes, asked once when they are loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np

from slotstream_core import _native as pieces
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.native import NativeLibrary
from slotstream_core.native.checking import random_matrix

TOLERANCE = 2e-5
"""Largest difference that float32 rounding explains, for values of about one."""


def disagreement(library: NativeLibrary, *, plain: bool) -> str | None:
    """Choose the pieces' instruction set and compare them with numpy on fixed random values.

    Args:
        library: Whose threads to use.
        plain: Use the least that the architecture offers.

    Returns:
        What differs, or None.
    """
    pieces.choose("baseline" if plain else pieces.instruction_sets()[0])
    generator = np.random.default_rng(0)
    checks: dict[str, Callable[[np.random.Generator], tuple[Floats, Floats]]] = {
        "normalisation": _norms,
        "the delta rule": _delta,
        "attention": _attention,
        "routing": _routing,
        "a product of many rows": partial(_product, library),
        "attention of many rows": partial(_attention_of_rows, library),
    }
    for name, check in checks.items():
        found, wanted = check(generator)
        difference = float(np.max(np.abs(found - wanted)))
        if not difference <= TOLERANCE:
            return f"{name} differs from numpy by {difference:.2g}"
    return None


def _draw(generator: np.random.Generator, *shape: int) -> Floats:
    return generator.standard_normal(shape, dtype=np.float32)


def _norms(generator: np.random.Generator) -> tuple[Floats, Floats]:
    x, weight = _draw(generator, 3, 2 * 37), _draw(generator, 2 * 37)
    found = np.empty_like(x)
    pieces.rms_norm(x, weight, 2, 1e-6, found)
    pieces.silu(found)
    groups = x.reshape(3, 2, 37)
    normed = groups / np.sqrt((groups**2).mean(axis=-1, keepdims=True) + 1e-6) * weight.reshape(2, 37)
    return found, (normed / (1 + np.exp(-normed))).reshape(3, -1).astype(np.float32)


def _delta(generator: np.random.Generator) -> tuple[Floats, Floats]:
    heads, keys, values = 4, 16, 24
    convolved = _draw(generator, 1, 2 * 2 * keys + heads * values)
    gate, step, decay = _draw(generator, 1, heads * values), _draw(generator, 1, heads), _draw(generator, 1, heads)
    rate, bias, weight = -np.exp(_draw(generator, heads)), _draw(generator, heads), _draw(generator, values)
    memory = _draw(generator, heads, values, keys)
    found, before = np.empty((1, heads * values), np.float32), memory.copy()
    pieces.delta(
        convolved, gate, step, decay, rate, bias, weight, memory, 2, keys, 1e-6, 1e-6, 0, 0, heads, found
    )  # fmt: skip
    q, k = convolved[0, : 4 * keys].reshape(2, 2, 1, keys).repeat(2, axis=2).reshape(2, heads, keys)
    k = k / np.sqrt((k**2).sum(axis=-1, keepdims=True) + 1e-6)
    q = q / np.sqrt((q**2).sum(axis=-1, keepdims=True) + 1e-6) / np.sqrt(keys)
    v = convolved[0, 4 * keys :].reshape(heads, values)
    after = before * np.exp(rate * np.log1p(np.exp(decay[0] + bias)))[:, None, None]
    error = (v - np.einsum("hvk,hk->hv", after, k)) / (1 + np.exp(-step[0]))[:, None]
    after = after + error[:, :, None] * k[:, None]
    out = np.einsum("hvk,hk->hv", after, q)
    out = out / np.sqrt((out**2).mean(axis=-1, keepdims=True) + 1e-6) * weight
    wanted = out / (1 + np.exp(-gate.reshape(heads, values)))
    return np.concatenate([found.ravel(), memory.ravel()]), np.concatenate([wanted.ravel(), after.ravel()])


def _attention(generator: np.random.Generator) -> tuple[Floats, Floats]:
    heads, kv_heads, dim, count = 4, 2, 20, 13
    q, keys = _draw(generator, heads * dim), _draw(generator, kv_heads, count, dim)
    values = _draw(generator, kv_heads, count, dim)
    chosen = np.arange(0, count, 2, dtype=np.int32)
    found, scratch = np.empty_like(q), np.empty(heads * len(chosen), np.float32)
    pieces.attend(q, keys, values, kv_heads, dim, len(chosen), chosen, 0.2, scratch, 0, heads, found)
    shown_keys, shown = keys[:, chosen].repeat(2, axis=0), values[:, chosen].repeat(2, axis=0)
    scores = np.exp(0.2 * np.einsum("hd,hkd->hk", q.reshape(heads, dim), shown_keys))
    wanted = np.einsum("hk,hkd->hd", scores / scores.sum(axis=-1, keepdims=True), shown)
    return found, wanted.reshape(-1)


def _product(library: NativeLibrary, generator: np.random.Generator) -> tuple[Floats, Floats]:
    matrix, dense = random_matrix(generator, (1, 37, 96), bits=4, group_size=32)
    x = _draw(generator, 19, 96)
    found = np.empty((19, 37), np.float32)
    pieces.multiply_many(library.handle, ctypes.addressof(matrix.structure), x, found)
    return found, (x @ dense[0].T).astype(np.float32)


def _attention_of_rows(library: NativeLibrary, generator: np.random.Generator) -> tuple[Floats, Floats]:
    heads, kv_heads, dim, rows, before = 4, 2, 20, 19, 70
    q, keys = _draw(generator, rows, heads * dim), _draw(generator, kv_heads, rows + before, dim)
    values, found = _draw(generator, kv_heads, rows + before, dim), np.empty((rows, heads * dim), np.float32)
    pieces.attend_rows(library.handle, q, keys, values, kv_heads, dim, before, None, 1, 0.2, found)
    scores = np.exp(0.2 * np.einsum("thd,hkd->thk", q.reshape(rows, heads, dim), keys.repeat(2, axis=0)))
    scores *= (np.arange(rows + before) <= np.arange(rows)[:, None] + before)[:, None]
    wanted = np.einsum("thk,hkd->thd", scores / scores.sum(axis=-1, keepdims=True), values.repeat(2, axis=0))
    return found, wanted.reshape(rows, -1)


def _routing(generator: np.random.Generator) -> tuple[Floats, Floats]:
    logits = _draw(generator, 2, 19)
    ids, weights = np.empty((2, 5), np.int32), np.empty((2, 5), np.float32)
    pieces.route(logits, 1, ids, weights)
    best = np.argsort(-logits, axis=-1)[:, :5]
    chosen = np.exp(np.take_along_axis(logits, best, axis=-1))
    return np.concatenate([ids, weights], axis=1), np.concatenate(
        [best, chosen / chosen.sum(axis=-1, keepdims=True)], axis=1
    ).astype(np.float32)
