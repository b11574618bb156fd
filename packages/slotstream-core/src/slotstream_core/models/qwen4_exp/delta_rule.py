"""The gated delta rule: a linear recurrence over tokens, one state matrix per value head.

For each head with state S [value_dim, key_dim], decay g in (0, 1], step size b, unit key k and value v:

    S <- g S;   S <- S + b (v - S k) k^T;   output = S q

`advance_one` is that, for one token. `advance_chunked` computes the same for many tokens with matrix products: inside
a chunk the corrections solve a unit lower triangular system (the WY form of a product of Householder-like factors;
Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024, and its gated form).
All arrays are float32.
"""

import mlx.core as mx


def advance_one(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array
) -> tuple[mx.array, mx.array]:
    """One token. ``state`` [H, V, K], ``q``/``k`` [key heads, K], ``v`` [H, V], ``decay``/``beta`` [H].

    Each key head serves the same number of consecutive value heads.

    Returns:
        The output [H, V] and the new state [H, V, K].
    """
    heads, value_dim, key_dim = state.shape
    key_heads = q.shape[0]
    shared = (key_heads, heads // key_heads * value_dim, key_dim)  # value heads of one key head, one under another
    state = (state * decay[:, None, None]).reshape(shared)
    read = (state @ k[:, :, None]).reshape(heads, value_dim)
    error = ((v - read) * beta[:, None]).reshape(*shared[:2], 1)
    state = mx.addmm(state, error, k[:, None, :])
    return (state @ q[:, :, None]).reshape(heads, value_dim), state.reshape(heads, value_dim, key_dim)


def advance_chunked(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, chunk: int
) -> tuple[mx.array, mx.array]:
    """Many tokens at once. ``state`` [H, V, K], ``q``/``k`` [key heads, T, K], ``v`` [H, T, V], rates [H, T].

    ``chunk`` is a power of two; the last chunk is padded with tokens that change nothing.

    Returns:
        The outputs [H, T, V] and the state after the last token.
    """
    heads, tokens, value_dim = v.shape
    key_dim = q.shape[-1]
    if q.shape[0] != heads:
        q, k = (mx.repeat(x, heads // q.shape[0], axis=0) for x in (q, k))
    count = -(-tokens // chunk)
    padding = count * chunk - tokens
    if padding:
        q, k, v = (mx.pad(x, [(0, 0), (0, padding), (0, 0)]) for x in (q, k, v))
        log_decay, beta = (mx.pad(x, [(0, 0), (0, padding)]) for x in (log_decay, beta))
    q, k = (x.reshape(heads, count, chunk, key_dim) for x in (q, k))
    v = v.reshape(heads, count, chunk, value_dim)
    beta = beta.reshape(heads, count, chunk, 1)
    total = mx.cumsum(log_decay.reshape(heads, count, chunk), axis=-1)  # log of the decay since the chunk began

    lower = mx.tril(mx.ones((chunk, chunk), dtype=mx.bool_))
    between = mx.exp(mx.where(lower, total[..., :, None] - total[..., None, :], -mx.inf))  # [H, N, C, C]
    k_beta = k * beta
    k_t = k.swapaxes(-1, -2)
    solve = invert_unit_lower((k_beta @ k_t) * between)
    within = (q @ k_t) * between
    since_start = mx.exp(total)[..., None]
    values = solve @ (v * beta)  # what each token would write into an empty state
    reads = solve @ (k_beta * since_start)  # what it reads from the state at the chunk's start
    q = q * since_start
    k_to_end = k * mx.exp(total[..., -1:] - total)[..., None]
    across = mx.exp(total[..., -1])[..., None, None]

    outputs = []
    for n in range(count):
        state_t = state.swapaxes(-1, -2)
        written = values[:, n] - reads[:, n] @ state_t  # [H, C, V]
        outputs.append(q[:, n] @ state_t + within[:, n] @ written)
        state = state * across[:, n] + written.swapaxes(-1, -2) @ k_to_end[:, n]
    output = outputs[0] if count == 1 else mx.concatenate(outputs, axis=1)
    return output[:, :tokens], state


def invert_unit_lower(matrix: mx.array) -> mx.array:
    """Inverse of I + the strictly lower part of ``matrix`` [..., C, C], C a power of two.

    Doubles the inverted diagonal blocks: for blocks P, Q and the rectangle R under P left of Q, the inverse of
    [[P, 0], [R, Q]] is [[P', 0], [-Q' R P', Q']]. Stable where a power series in R is not (repeated keys).
    """
    size = matrix.shape[-1]
    lead = matrix.shape[:-2]
    blocks = mx.ones((*lead, size, 1, 1), dtype=matrix.dtype)
    width = 1
    while width < size:
        pairs = size // (2 * width)
        # tiles[..., i, :, j, :] is the block in block-row i, block-column j
        tiles = matrix.reshape(*lead, 2 * pairs, width, 2 * pairs, width).swapaxes(-2, -3)
        rectangle = mx.stack([tiles[..., 2 * p + 1, 2 * p, :, :] for p in range(pairs)], axis=-3)
        upper, under = blocks[..., 0::2, :, :], blocks[..., 1::2, :, :]
        corner = -(under @ rectangle @ upper)
        top = mx.concatenate([upper, mx.zeros_like(upper)], axis=-1)
        blocks = mx.concatenate([top, mx.concatenate([corner, under], axis=-1)], axis=-2)
        width *= 2
    return blocks[..., 0, :, :]
