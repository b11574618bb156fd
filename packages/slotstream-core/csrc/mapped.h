/* Regions of files that lie in the process's memory, where a device fetches them itself.
 *
 * Who maps a file and registers its memory with the device's driver is the owner; here is only what lies where, and whether
 * somebody still uses it. A region begins empty; its start is in reach, and how much of it changes while others look things
 * up. What is out of reach is not found any more, and what was found before is in use until ss_mapped_quiet says otherwise. */
#ifndef SLOTSTREAM_MAPPED_H
#define SLOTSTREAM_MAPPED_H

#include "slotstream_native.h"

typedef struct ss_mapped ss_mapped;

/* `regions` has a descriptor, the first offset and the one behind the last for each; sorted, and none overlaps another. */
SS_API int32_t ss_mapped_create(const int64_t *regions, int64_t count, ss_mapped **mapped);
SS_API void ss_mapped_release(ss_mapped *mapped); /* lanes that use it keep it as long as they need */

/* A region's first `bytes` can be fetched from `address` on, which is the same in every call: as many as before, or more.
 * One thread calls this and the next two. */
SS_API int32_t ss_mapped_extend(ss_mapped *mapped, int64_t region, const void *address, int64_t bytes);

/* No more than a region's first `bytes` are found from now on. */
SS_API int32_t ss_mapped_shrink(ss_mapped *mapped, int64_t region, int64_t bytes);

/* Whether nobody uses anything that is out of reach: 1, or 0 as long as somebody who entered before may. To be asked again
 * until it is 1, however long others go on entering; what is shrunk meanwhile is waited for, too. Never waits. */
SS_API int32_t ss_mapped_quiet(ss_mapped *mapped);

/* How many are between ss_mapped_enter and ss_mapped_leave: reads that were planned and are not over. Any thread. */
SS_API int64_t ss_mapped_users(const ss_mapped *mapped);

/* To be called before something is looked up; what is found may be used until what this returned is given to
 * ss_mapped_leave, once. Both take a table that is null, and any thread may call them. */
int ss_mapped_enter(ss_mapped *mapped);
void ss_mapped_leave(ss_mapped *mapped, int entry);

/* Where some bytes of a file lie, null where they are not all in reach. Null for a table that is null. Any thread. */
const char *ss_mapped_find(const ss_mapped *mapped, int64_t fd, int64_t offset, int64_t bytes);

void ss_mapped_refer(ss_mapped *mapped);

#endif
