"""Kernels of a full-attention layer for one row, between the products with its input and the output's map.

`PREPARE` writes what the token adds to the caches and the queries that ask; `SCORE` and `CHOOSE` find the blocks of
keys that it sees once there are more than the budget holds, and end at once before; `PARTS` attends to a part of the
keys in each block of threads, and `JOIN` puts the parts together. All follow `SparseAttention` and `Selector`, whose
roundings to bfloat16 they repeat up to the caches and queries, so that the same blocks are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.device.kernels import MOST_THREADS, KernelSpec, Output

MOST_SPLITS = 64
"""Parts that the keys are divided into, or as many as `TILE` asks for: two heads of keys then fill 132 processors."""

TILE = 32
"""Most keys of a part, all of whose rows are asked for before the first is looked at."""

LEAST_KEYS = 8
"""Of a part, when there are enough."""

COLUMNS = 32
"""Values of a head that a block of `JOIN` puts together, with `SETS` threads for each."""

SETS = 8

SHARED_BYTES = 48 * 1024
"""What a block of threads may share."""

PREPARE = """
  // a warp a head: queries, keys, values, queries of the indexer, and its key
  __shared__ float held[32 * EACH];
  const int part = blockIdx.x, lane = threadIdx.x, half = ROTARY / 2, row = position % RATIO;
  const __nv_bfloat16 *from = index_in + INDEX_AT + INDEX_HEADS * INDEX_DIM, *weight = index_key_norm;
  __nv_bfloat16* to = block_keys + position / RATIO * INDEX_DIM;
  long long angle = position - angles_from;
  int width = DIM;
  bool pooled = false;
  if (part < HEADS) {
    from = query_gate + QUERY_AT + part * 2 * DIM, weight = norms + part * DIM, to = queries + part * DIM;
  } else if (part < HEADS + KV_HEADS) {
    const int head = part - HEADS;
    from = key_in + KEY_AT + head * DIM, weight = norms + part * DIM, to = keys + (head * capacity + position) * DIM;
  } else if (part < HEADS + 2 * KV_HEADS) {
    const int head = part - HEADS - KV_HEADS;
    to = values + (head * capacity + position) * DIM;
    for (int i = lane; i < DIM; i += 32) to[i] = value_in[VALUE_AT + head * DIM + i];
    return;
  } else if (part < HEADS + 2 * KV_HEADS + INDEX_HEADS) {
    const int head = part - HEADS - 2 * KV_HEADS;
    width = INDEX_DIM, to = index_queries + head * INDEX_DIM;
    from = index_in + INDEX_AT + head * INDEX_DIM, weight = index_query_norm;
  } else if (row < RATIO - 1) {
    for (int i = lane; i < INDEX_DIM; i += 32) tail[row * INDEX_DIM + i] = from[i];
    return;
  } else {
    width = INDEX_DIM, pooled = true, angle -= row;
  }
  // everything is asked for before anything is used
  float own[EACH], weights[EACH], cosine[TURNED], sine[TURNED];
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    const int i = lane + 32 * j;
    own[j] = i < width ? slotstream_float(from[i]) : 0.0f;
    weights[j] = i < width ? slotstream_float(weight[i]) : 0.0f;
    if (32 * j < ROTARY) {
      const long long at = angle * half + i % half;
      cosine[j] = slotstream_float(cosines[at]), sine[j] = slotstream_float(sines[at]);
    }
  }
  auto rounded = [](float x) { return slotstream_float(__float2bfloat16(x)); };
  if (pooled) {
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const int i = lane + 32 * j;
      float total = 0;
      for (int earlier = 0; earlier < RATIO - 1; earlier++)
        total += i < width ? slotstream_float(tail[earlier * INDEX_DIM + i]) : 0.0f;
      own[j] = rounded((total + own[j]) * (1.0f / RATIO));
    }
  }
  float square = 0;
  for (int j = 0; j < EACH; j++) square += own[j] * own[j];
  const float scale = rsqrtf(slotstream_sum(square, 32) / width + EPS);
  for (int j = 0; j < EACH; j++) held[lane + 32 * j] = rounded(rounded(own[j] * scale) * weights[j]);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    const int i = lane + 32 * j;
    float value = held[i];
    if (32 * j < ROTARY && i < ROTARY) {
      const float left = held[i % half], right = held[half + i % half];
      if (i < half) value = rounded(left * cosine[j]) - rounded(right * sine[j]);
      else value = rounded(right * cosine[j]) + rounded(left * sine[j]);
    }
    if (i < width) to[i] = __float2bfloat16(value);
  }
"""

SCORE = """
  // INDEX_DIM / 16 threads for each complete block of keys
  const int lanes = INDEX_DIM / 16, lane = threadIdx.x % lanes, own = threadIdx.x % 32 / lanes;
  const long long complete = (position + 1) / RATIO, step = gridDim.x * (blockDim.x / lanes);
  if (complete <= BEST) return;
  float query[INDEX_HEADS][16], key[16];
  for (int head = 0; head < INDEX_HEADS; head++)
    slotstream_load(index_queries + head * INDEX_DIM + 16 * lane, query[head]);
  const long long warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  for (long long first = warp * (32 / lanes); first < complete; first += step) {  // together, for the sums
    const long long block = first + own < complete ? first + own : complete - 1;
    slotstream_load(block_keys + block * INDEX_DIM + 16 * lane, key);
    float total = 0;
    for (int head = 0; head < INDEX_HEADS; head++) {
      float dot = 0;
      for (int i = 0; i < 16; i++) dot += query[head][i] * key[i];
      total += fmaxf(slotstream_sum(dot, lanes), 0.0f);
    }
    if (lane == 0 && first + own < complete) scores[block] = total * SCALE;
  }
"""

CHOOSE = """
  // one block: the largest number that BEST scores reach is found by halving, then they are listed; of equals the first
  __shared__ int counts[2][32], greater_before[32], equal_before[32];
  const int complete = (position + 1) / RATIO, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  if (complete <= BEST) return;
  const int each = (complete + blockDim.x - 1) / blockDim.x, first = thread * each;
  const int last = first + each < complete ? first + each : complete, warps = blockDim.x / 32;
  // scores are not negative: their bits are in their order. No score is 0 here.
  auto bits_of = [&](int i) { return i < last ? __float_as_uint(scores[i]) + 1 : 0u; };
  unsigned int held[8];
  for (int i = 0; i < 8; i++) held[i] = bits_of(first + i);
  int turn = 0;
  auto sum = [](int value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, value);
#else
    for (int apart = 16; apart; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
#endif
  };
  auto reaching = [&](unsigned int least) {
    int count = 0;
    for (int i = 0; i < 8; i++) count += held[i] >= least;
    for (int i = first + 8; i < last; i++) count += bits_of(i) >= least;
    count = sum(count);
    turn ^= 1;
    if (lane == 0) counts[turn][warp] = count;
    __syncthreads();
    return sum(lane < warps ? counts[turn][lane] : 0);
  };
  unsigned int low = 1, high = 0x7f800002u;
  for (int found = complete; found != BEST && high - low > 1;) {
    const unsigned int middle = low + (high - low) / 2;
    const int count = reaching(middle);
    if (count >= BEST) low = middle, found = count;
    else high = middle;
  }
  int greater = 0, equal = 0;
  auto count = [&](unsigned int bits) { greater += bits > low, equal += bits == low; };
  for (int i = 0; i < 8; i++) count(held[i]);
  for (int i = first + 8; i < last; i++) count(bits_of(i));
  const int room = BEST - reaching(low + 1);
  // how many come before this thread's, first in its warp, then in all
  auto before = [&](int value, int* sums) {
    int total = value, earlier = 0;
    for (int apart = 1; apart < 32; apart *= 2) {
      const int other = __shfl_xor_sync(0xffffffffu, total, apart);
      if (lane & apart) earlier += other;
      total += other;
    }
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    for (int i = 0; i < warp; i++) earlier += sums[i];
    return earlier;
  };
  greater = before(greater, greater_before);
  equal = before(equal, equal_before);
  auto list = [&](int i, unsigned int bits) {
    if (bits > low || (bits == low && equal < room)) chosen[greater + (equal < room ? equal : room)] = i;
    count(bits);
  };
  for (int i = 0; i < 8; i++) list(first + i, held[i]);
  for (int i = first + 8; i < last; i++) list(i, bits_of(i));
"""

SPLIT = """
  const long long complete = (position + 1) / RATIO;
  const bool chooses = complete > BEST;
  const int seen = chooses ? BEST * RATIO + int((position + 1) % RATIO) : int(position + 1);
  const int even = (seen + SPLITS - 1) / SPLITS, size = even > LEAST ? even : LEAST, used = (seen + size - 1) / size;
"""
"""How the keys are divided: into ``used`` parts of ``size`` keys, the last one of what is left."""

PARTS = """
  // one block a head of keys and part of them, which GROUP heads of queries share
  __shared__ int tokens[TILE];
  __shared__ float4 fours[TILE * FOURS];
  __shared__ float others[GROUP * DIM];
  float* scores = reinterpret_cast<float*>(fours);
  const int head = blockIdx.x / SPLITS, split = blockIdx.x % SPLITS, thread = threadIdx.x, first = split * size;
  if (split >= used) return;
  const int count = seen - first < size ? seen - first : size;
  for (int i = thread; i < count; i += blockDim.x) {
    const int at = first + i;
    if (!chooses) tokens[i] = at;
    else if (at < BEST * RATIO) tokens[i] = chosen[at / RATIO] * RATIO + at % RATIO;
    else tokens[i] = int(complete * RATIO) + at - BEST * RATIO;
  }
  __syncthreads();
  // DIM / 8 threads a key, then two sets of DIM / 2 threads for the values; all rows are asked for at once
  const int lane = thread % (DIM / 8), row = thread / (DIM / 8), pair = thread % (DIM / 2), set = thread / (DIM / 2);
  uint4 key_rows[TILE / 8];
  unsigned int value_rows[TILE / 2];
#pragma unroll
  for (int i = 0; i < TILE / 8; i++) {
    const int at = 8 * i + row < count ? 8 * i + row : count - 1;
    key_rows[i] = *reinterpret_cast<const uint4*>(keys + (head * capacity + tokens[at]) * DIM + 8 * lane);
  }
#pragma unroll
  for (int i = 0; i < TILE / 2; i++) {
    const int at = 2 * i + set < count ? 2 * i + set : count - 1;
    value_rows[i] = *reinterpret_cast<const unsigned int*>(values + (head * capacity + tokens[at]) * DIM + 2 * pair);
  }
  float query[GROUP][8];
#pragma unroll
  for (int g = 0; g < GROUP; g++) {
    const uint4 raw = *reinterpret_cast<const uint4*>(queries + (head * GROUP + g) * DIM + 8 * lane);
    const unsigned int words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
      query[g][i] = SCALE * __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
  }
#pragma unroll
  for (int i = 0; i < TILE / 8; i++) {
    if (8 * i < count) {
      const unsigned int words[4] = {key_rows[i].x, key_rows[i].y, key_rows[i].z, key_rows[i].w};
      float dots[GROUP];
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        dots[g] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
          dots[g] += query[g][j] * __uint_as_float(j % 2 ? words[j / 2] & 0xffff0000u : words[j / 2] << 16);
      }
      // while sums are taken over lanes, these share the heads out among them as long as they can be halved
      int left = GROUP, own = 0, alike = 0;
#pragma unroll
      for (int apart = DIM / 16; apart; apart /= 2) {
        if (left % 2 == 0) {
          left /= 2;
#pragma unroll
          for (int g = 0; g < left; g++) {
            const float give = lane & apart ? dots[g] : dots[g + left], keep = lane & apart ? dots[g + left] : dots[g];
            dots[g] = keep + __shfl_xor_sync(0xffffffffu, give, apart);
          }
          if (lane & apart) own += left;
        } else {
          alike |= apart;
#pragma unroll
          for (int g = 0; g < left; g++) dots[g] += __shfl_xor_sync(0xffffffffu, dots[g], apart);
        }
      }
      if (8 * i + row < count && !(lane & alike)) {
#pragma unroll
        for (int g = 0; g < left; g++) scores[(8 * i + row) * 4 * FOURS + own + g] = dots[g];
      }
    }
  }
  __syncthreads();
  const int slot = head * GROUP * SPLITS + split;
  for (int g = thread / 32; g < GROUP; g += blockDim.x / 32) {
    const bool there = thread % 32 < count;  // a lane a key
    float* score = scores + thread % 32 * 4 * FOURS + g;
    float peak = there ? *score : -INFINITY;
    for (int apart = 16; apart; apart /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, apart));
    const float weight = there ? expf(*score - peak) : 0.0f, total = slotstream_sum(weight, 32);
    if (there) *score = weight;
    if (thread % 32 == 0) peaks[slot + g * SPLITS] = peak, totals[slot + g * SPLITS] = total;
  }
  __syncthreads();
  float sums[4 * FOURS][2];
  for (int g = 0; g < 4 * FOURS; g++) sums[g][0] = sums[g][1] = 0;
#pragma unroll
  for (int i = 0; i < TILE / 2; i++) {
    if (2 * i + set < count) {
      const float low = __uint_as_float(value_rows[i] << 16), high = __uint_as_float(value_rows[i] & 0xffff0000u);
#pragma unroll
      for (int j = 0; j < FOURS; j++) {
        const float4 four = fours[(2 * i + set) * FOURS + j];
        sums[4 * j][0] += four.x * low, sums[4 * j][1] += four.x * high;
        sums[4 * j + 1][0] += four.y * low, sums[4 * j + 1][1] += four.y * high;
        sums[4 * j + 2][0] += four.z * low, sums[4 * j + 2][1] += four.z * high;
        sums[4 * j + 3][0] += four.w * low, sums[4 * j + 3][1] += four.w * high;
      }
    }
  }
#pragma unroll
  for (int g = 0; g < GROUP; g++)
    if (set) others[g * DIM + 2 * pair] = sums[g][0], others[g * DIM + 2 * pair + 1] = sums[g][1];
  __syncthreads();
#pragma unroll
  for (int g = 0; g < GROUP; g++)
    if (!set) {
      float* part = parts + size_t(slot + g * SPLITS) * DIM + 2 * pair;
      part[0] = sums[g][0] + others[g * DIM + 2 * pair], part[1] = sums[g][1] + others[g * DIM + 2 * pair + 1];
    }
"""

JOIN = """
  // COLUMNS values of a head a block, SETS threads for each
  __shared__ float sums[SETS * COLUMNS];
  const int head = blockIdx.x / (DIM / COLUMNS), lane = threadIdx.x % 32, set = threadIdx.x / 32;
  const int place = blockIdx.x % (DIM / COLUMNS) * COLUMNS + lane, slot = head * SPLITS;
  float peak = -INFINITY, total = 0, sum = 0;
  for (int split = lane; split < used; split += 32) peak = fmaxf(peak, peaks[slot + split]);
  for (int apart = 16; apart; apart /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, apart));
  for (int split = lane; split < used; split += 32) total += totals[slot + split] * expf(peaks[slot + split] - peak);
  total = slotstream_sum(total, 32);
  for (int split = set; split < used; split += SETS)
    sum += parts[size_t(slot + split) * DIM + place] * expf(peaks[slot + split] - peak);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (set == 0) {
    for (int other = 1; other < SETS; other++) sum += sums[other * COLUMNS + lane];
    const float gate = slotstream_logistic(slotstream_float(query_gate[QUERY_AT + (2 * head + 1) * DIM + place]));
    attended[head * DIM + place] = __float2bfloat16(sum / total * gate);
  }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSizes:
    """What the kernels of a layer are made for.

    Attributes:
        heads: Of queries.
        kv_heads: Of keys and of values.
        dim: Values of a head.
        rotary: Of these, rotated.
        index_heads: Of the indexer's queries.
        index_dim: Values of each.
        ratio: Tokens of an indexer's block.
        best: Blocks that a token sees.
        eps: Of the norms.
        positions: Tokens of the longest sequence.
    """

    heads: int
    kv_heads: int
    dim: int
    rotary: int
    index_heads: int
    index_dim: int
    ratio: int
    best: int
    eps: float
    positions: int

    @classmethod
    def of(cls, config: Qwen4ExpConfig) -> AttentionSizes:
        """Those of a model."""
        return cls(
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            dim=config.head_dim,
            rotary=config.rotary_dim,
            index_heads=config.indexer_n_heads,
            index_dim=config.indexer_head_dim,
            ratio=config.indexer_compress_ratio,
            best=config.indexer_budget // config.indexer_compress_ratio,
            eps=config.rms_norm_eps,
            positions=config.max_position_embeddings,
        )

    @property
    def group(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.kv_heads

    @property
    def splits(self) -> int:
        """Parts that the keys which a token may see are divided into."""
        most = self.best * self.ratio + self.ratio - 1
        return max(min(MOST_SPLITS, -(-most // LEAST_KEYS)), -(-most // TILE))

    @property
    def suits(self) -> bool:
        """Whether the kernels compute such layers."""
        fours = -(-self.group // 4)
        shared_bytes = 4 * (TILE * (4 * fours + 1) + self.group * self.dim)
        return (
            self.dim in (32, 64, 128, 256)
            and self.index_dim in (16, 32, 64, 128, 256)
            and self.heads == self.group * self.kv_heads
            and 2 <= self.rotary <= min(self.dim, self.index_dim)
            and self.rotary % 2 == 0
            and self.best >= 1
            and shared_bytes <= SHARED_BYTES
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InputPlaces:
    """Where each of a layer's inputs begins in the product that holds it."""

    query: int
    key: int
    value: int
    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionKernels:
    """The kernels of layers of the same sizes, in the order of their use."""

    prepare: KernelSpec
    score: KernelSpec
    choose: KernelSpec
    parts: KernelSpec
    join: KernelSpec


def attention_kernels(sizes: AttentionSizes, places: InputPlaces) -> AttentionKernels:
    """The kernels of layers of some sizes; shapes of arrays that grow say how long these are at most."""
    blocks = sizes.positions // sizes.ratio
    selection = {"RATIO": sizes.ratio, "BEST": sizes.best}
    heads = {"HEADS": sizes.heads, "KV_HEADS": sizes.kv_heads, "DIM": sizes.dim, "QUERY_AT": places.query}
    index = {"INDEX_HEADS": sizes.index_heads, "INDEX_DIM": sizes.index_dim}
    dividing = {**selection, "SPLITS": sizes.splits, "LEAST": LEAST_KEYS}
    return AttentionKernels(
        prepare=_prepare(sizes, places, {**heads, **index, "RATIO": sizes.ratio}),
        score=KernelSpec(
            name="score_blocks",
            inputs=("index_queries", "block_keys"),
            outputs=(Output(name="scores", shape=(blocks,), dtype=mx.float32),),
            constants={**selection, **index, "SCALE": sizes.index_dim**-0.5},
            body=SCORE,
            blocks=max(1, min(264, -(-blocks * sizes.index_dim // (16 * 256)))),
            threads=256,
            values=("position",),
        ),
        choose=KernelSpec(
            name="choose_blocks",
            inputs=("scores",),
            outputs=(Output(name="chosen", shape=(sizes.best,), dtype=mx.int32),),
            constants=selection,
            body=CHOOSE,
            blocks=1,
            threads=min(MOST_THREADS, max(32, -(-blocks // 32) * 32)),
            values=("position",),
        ),
        parts=_parts(sizes, dividing),
        join=KernelSpec(
            name="attend_join",
            inputs=("parts", "peaks", "totals", "query_gate"),
            outputs=(Output(name="attended", shape=(1, sizes.heads * sizes.dim), dtype=mx.bfloat16),),
            constants={**dividing, "DIM": sizes.dim, "QUERY_AT": places.query, "COLUMNS": COLUMNS, "SETS": SETS},
            body=SPLIT + JOIN,
            blocks=sizes.heads * sizes.dim // COLUMNS,
            threads=SETS * COLUMNS,
            values=("position",),
        ),
    )


def _prepare(sizes: AttentionSizes, places: InputPlaces, constants: dict[str, int]) -> KernelSpec:
    cache = (sizes.kv_heads, sizes.positions, sizes.dim)
    index_norms = ("index_query_norm", "index_key_norm")
    return KernelSpec(
        name="attend_prepare",
        inputs=("query_gate", "key_in", "value_in", "index_in", "norms", *index_norms, "cosines", "sines"),
        outputs=(
            Output(name="queries", shape=(sizes.heads, sizes.dim), dtype=mx.bfloat16),
            Output(name="keys", shape=cache, dtype=mx.bfloat16),
            Output(name="values", shape=cache, dtype=mx.bfloat16),
            Output(name="index_queries", shape=(sizes.index_heads, sizes.index_dim), dtype=mx.bfloat16),
            Output(name="tail", shape=(sizes.ratio, sizes.index_dim), dtype=mx.bfloat16),
            Output(name="block_keys", shape=(sizes.positions // sizes.ratio, sizes.index_dim), dtype=mx.bfloat16),
        ),
        constants={
            **constants,
            "KEY_AT": places.key,
            "VALUE_AT": places.value,
            "INDEX_AT": places.index,
            "ROTARY": sizes.rotary,
            "EACH": -(-max(sizes.dim, sizes.index_dim) // 32),
            "TURNED": -(-sizes.rotary // 32),
            "EPS": sizes.eps,
        },
        body=PREPARE,
        blocks=sizes.heads + 2 * sizes.kv_heads + sizes.index_heads + 1,
        threads=32,
        values=("position", "angles_from", "capacity"),
    )


def _parts(sizes: AttentionSizes, dividing: dict[str, int]) -> KernelSpec:
    asking = (sizes.heads, sizes.splits)
    return KernelSpec(
        name="attend_parts",
        inputs=("queries", "keys", "values", "chosen"),
        outputs=(
            Output(name="parts", shape=(*asking, sizes.dim), dtype=mx.float32),
            Output(name="peaks", shape=asking, dtype=mx.float32),
            Output(name="totals", shape=asking, dtype=mx.float32),
        ),
        constants={
            **dividing,
            "DIM": sizes.dim,
            "GROUP": sizes.group,
            "FOURS": -(-sizes.group // 4),
            "TILE": TILE,
            "SCALE": sizes.dim**-0.5,
        },
        body=SPLIT + PARTS,
        blocks=sizes.kv_heads * sizes.splits,
        threads=sizes.dim,
        values=("position", "capacity"),
    )
