/* Which variants were built and which of them this processor runs. */
#include "kernels.h"

static int always(void) { return 1; }

#if defined(__x86_64__) && defined(SS_WITH_X86_VARIANTS)
/* __builtin_cpu_supports also asks whether the operating system keeps the wide registers. */
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static const struct {
    const ss_kernels *kernels;
    int (*runnable)(void);
} VARIANTS[] = {
    {&ss_kernels_scalar, always},
#if defined(__x86_64__) && defined(SS_WITH_X86_VARIANTS)
    {&ss_kernels_avx2, has_avx2},
    {&ss_kernels_avx2_subnormal, has_avx2},
    {&ss_kernels_avx512, has_avx512},
#endif
#if defined(__aarch64__) && defined(__ARM_NEON)
    {&ss_kernels_neon, always},
#endif
};

static int32_t variant_count(void) { return (int32_t)(sizeof VARIANTS / sizeof VARIANTS[0]); }

const ss_kernels *ss_variant(int32_t index) {
    if (index < 0 || index >= variant_count() || !VARIANTS[index].runnable()) return NULL;
    return VARIANTS[index].kernels;
}

int32_t ss_abi_version(void) { return SS_ABI_VERSION; }

const char *ss_variant_name(int32_t index) {
    return index < 0 || index >= variant_count() ? NULL : VARIANTS[index].kernels->name;
}

int32_t ss_variant_runnable(int32_t index) { return ss_variant(index) != NULL; }
