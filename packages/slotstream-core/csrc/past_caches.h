/* Storing bytes in memory without keeping them in the processor's caches.
 *
 * What a core has just written lies in its own cache, from where a device fetches it at less than half the speed of the
 * bus (docs/log.md). What was stored past the caches comes from memory, at all of it. */
#ifndef SLOTSTREAM_PAST_CACHES_H
#define SLOTSTREAM_PAST_CACHES_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SS_LINE 64

#if defined(__x86_64__)
/* A line as one store where there are such stores. */
__attribute__((target("avx512f"))) static inline void ss_store_lines_512(char *to, const char *from, int64_t lines) {
    for (; lines > 0; lines--, to += SS_LINE, from += SS_LINE)
        _mm512_stream_si512((void *)to, _mm512_loadu_si512((const void *)from));
}

static inline void ss_store_lines_128(char *to, const char *from, int64_t lines) {
    for (; lines > 0; lines--, to += SS_LINE, from += SS_LINE) {
        const __m128i *line = (const __m128i *)from;
        __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
        __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
}
#endif

/* Copy bytes to a multiple of SS_LINE. Other threads and devices may see them only after `ss_end_storing`. */
static inline void ss_store_past_caches(char *to, const char *from, int64_t bytes) {
    int64_t stored = 0;
#if defined(__x86_64__)
    stored = bytes / SS_LINE * SS_LINE;
    if (__builtin_cpu_supports("avx512f")) ss_store_lines_512(to, from, bytes / SS_LINE);
    else ss_store_lines_128(to, from, bytes / SS_LINE);
#endif
    memcpy(to + stored, from + stored, (size_t)(bytes - stored));
}

static inline void ss_end_storing(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
