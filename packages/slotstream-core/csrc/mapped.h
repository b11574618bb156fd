/* Regions of files that lie in the process's memory, where a device fetches them itself.
 *
 * Who maps a file and registers its memory with the device's driver is the caller; here is only what lies where. A region
 * begins empty and grows from its start, while others look things up; it never shrinks. What was found stays where it is
 * until the owner unmaps it, which may happen only when no lanes that know the table have a thread left. */
#ifndef SLOTSTREAM_MAPPED_H
#define SLOTSTREAM_MAPPED_H

#include "slotstream_native.h"

typedef struct ss_mapped ss_mapped;

/* `regions` has a descriptor, the first offset and the one behind the last for each; sorted, and none overlaps another. */
SS_API int32_t ss_mapped_create(const int64_t *regions, int64_t count, ss_mapped **mapped);
SS_API void ss_mapped_release(ss_mapped *mapped); /* lanes that use it keep it as long as they need */

/* A region's first `bytes` can be fetched from `address` on, which is the same in every call. One thread calls this. */
SS_API int32_t ss_mapped_extend(ss_mapped *mapped, int64_t region, const void *address, int64_t bytes);

/* Where some bytes of a file lie, null where they are not all in reach. Null for a table that is null. Any thread. */
const char *ss_mapped_find(const ss_mapped *mapped, int64_t fd, int64_t offset, int64_t bytes);

void ss_mapped_refer(ss_mapped *mapped);

#endif
