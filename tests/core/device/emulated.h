/* Enough of CUDA to run a kernel on the host: a context a thread of a block, taken in turn, one block after the other. */
#include <setjmp.h>
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
struct __half { uint16_t bits; };
static inline float __half2float(__half x) {
  const unsigned int sign = (unsigned int)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float value = ldexpf(__uint_as_float(rest << 13), 112); /* subnormal ones, too */
  return sign ? -value : value;
}
static inline __half __float2half(float value) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const float size = fabsf(value);
  if (size != size) return {0x7fff};
  if (size >= 65520.0f) return {(uint16_t)(sign | 0x7c00)};
  int exponent = -13; /* of subnormal ones */
  if (size >= 0x1p-14f) frexpf(size, &exponent);
  const int step = exponent - 11; /* 2^step is the distance of neighbours */
  const int count = (int)rintf(ldexpf(size, -step)); /* of these; 1024 to 2048 of normal ones */
  return {(uint16_t)(sign | (uint16_t)(count + (step + 24) * 1024))};
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

struct place { int x; };
static place threadIdx, blockIdx, blockDim, gridDim;

/* A meeting of `size` threads; whoever comes last opens it. */
struct meeting { int size, arrived; unsigned long opened; };

static meeting whole, warps[MOST_THREADS / 32];
static uint32_t exchanged[MOST_THREADS];
static ucontext_t beginnings[MOST_THREADS];
static jmp_buf pauses[MOST_THREADS], scheduler;  /* swapcontext asks the system for signal masks at every turn */
static char started[MOST_THREADS], over[MOST_THREADS];
static void (*thread_body)();
static int turn, finished;

static void meet(meeting* at) {
  const unsigned long before = at->opened;
  if (++at->arrived == at->size) {
    at->arrived = 0;
    at->opened++;
  }
  while (at->opened == before)
    if (!_setjmp(pauses[threadIdx.x])) _longjmp(scheduler, 1);
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
  over[threadIdx.x] = 1;
  finished++;
  _longjmp(scheduler, 1);
}

/* Go on with a thread until it waits for others or ends. */
static void resume(int thread) {
  threadIdx.x = thread;
  if (_setjmp(scheduler)) return;
  if (started[thread]) _longjmp(pauses[thread], 1);
  started[thread] = 1;
  setcontext(&beginnings[thread]);
}

static void launch(int blocks, int threads, void (*body)()) {
  char* stacks = (char*)malloc((size_t)STACK_BYTES * threads);
  blockDim.x = threads;
  gridDim.x = blocks;
  thread_body = body;
  for (int thread = 0; thread < threads; thread++) {
    getcontext(&beginnings[thread]);
    beginnings[thread].uc_stack.ss_sp = stacks + (size_t)STACK_BYTES * thread;
    beginnings[thread].uc_stack.ss_size = STACK_BYTES;
    beginnings[thread].uc_link = NULL;
    makecontext(&beginnings[thread], run_thread, 0);
  }
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    whole = {threads, 0, 0};
    for (int warp = 0; warp < (threads + 31) / 32; warp++) warps[warp] = {32, 0, 0};
    memset(started, 0, sizeof started);
    memset(over, 0, sizeof over);
    for (finished = 0, turn = 0; finished < threads; turn = (turn + 1) % threads)
      if (!over[turn]) resume(turn);
  }
  free(stacks);
}
