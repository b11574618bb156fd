/* Enough of CUDA to run a kernel on the host: a context a thread of a block, taken in turn, one block after the other. */
#include <ucontext.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_THREADS 1024
#define STACK_BYTES 65536

#define __device__
#define __shared__ static

struct uint2 { unsigned int x, y; };
struct uint4 { unsigned int x, y, z, w; };
struct float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct __nv_bfloat16 { uint16_t bits; };
static inline float __uint_as_float(unsigned int bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline unsigned int __float_as_uint(float value) { unsigned int bits; memcpy(&bits, &value, 4); return bits; }
static inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned int)x.bits << 16); }
static inline __nv_bfloat16 __float2bfloat16(float value) {
  unsigned int bits;
  memcpy(&bits, &value, 4);
  if (value != value) return {0x7fc0};
  return {(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

struct place { int x; };
static place threadIdx, blockIdx, blockDim, gridDim;

/* A meeting of `size` threads; whoever comes last opens it. */
struct meeting { int size, arrived; unsigned long opened; };

static meeting whole, warps[MOST_THREADS / 32];
static uint32_t exchanged[MOST_THREADS];
static ucontext_t contexts[MOST_THREADS], scheduler;
static void (*thread_body)();
static int finished;

static void meet(meeting* at) {
  const unsigned long before = at->opened;
  if (++at->arrived == at->size) {
    at->arrived = 0;
    at->opened++;
  }
  while (at->opened == before) swapcontext(&contexts[threadIdx.x], &scheduler);
}
static inline void __syncthreads() { meet(&whole); }
static inline void __syncwarp() { meet(&warps[threadIdx.x / 32]); }
static inline void __threadfence_system() {}
template <class Value>
static inline Value __shfl_xor_sync(unsigned int, Value value, int apart) {
  static_assert(sizeof value == 4, "a register");
  const int thread = threadIdx.x, warp = thread / 32;
  memcpy(&exchanged[thread], &value, 4);
  meet(&warps[warp]);
  memcpy(&value, &exchanged[32 * warp + ((thread % 32) ^ apart)], 4);
  meet(&warps[warp]);
  return value;
}
static void run_thread() {
  thread_body();
  finished++;
}

static void launch(int blocks, int threads, void (*body)()) {
  char* stacks = (char*)malloc((size_t)STACK_BYTES * threads);
  char over[MOST_THREADS];
  blockDim.x = threads;
  gridDim.x = blocks;
  thread_body = body;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    whole = {threads, 0, 0};
    for (int warp = 0; warp < threads / 32; warp++) warps[warp] = {32, 0, 0};
    memset(over, 0, sizeof over);
    finished = 0;
    for (int thread = 0; thread < threads; thread++) {
      getcontext(&contexts[thread]);
      contexts[thread].uc_stack.ss_sp = stacks + (size_t)STACK_BYTES * thread;
      contexts[thread].uc_stack.ss_size = STACK_BYTES;
      contexts[thread].uc_link = &scheduler;
      makecontext(&contexts[thread], run_thread, 0);
    }
    while (finished < threads)
      for (int thread = 0; thread < threads; thread++) {
        if (over[thread]) continue;
        const int before = finished;
        threadIdx.x = thread;
        swapcontext(&scheduler, &contexts[thread]);
        over[thread] = finished > before;
      }
  }
  free(stacks);
}
