/* What functions of the module on slot pools and launches share. */
#ifndef SLOTSTREAM_RESIDENCY_MODULE_H
#define SLOTSTREAM_RESIDENCY_MODULE_H

#include "arrays.h"
#include "launches.h"
#include "tickets.h"

/* The bookkeeping in a capsule of residency_module.c; null with an error set. */
ss_residency *ss_residency_of(PyObject *object);

/* What the capsules of tickets_module.c and launches_module.c hold; null with an error set. */
ss_tickets *ss_tickets_of(PyObject *object);
ss_program *ss_program_of(PyObject *object);

/* Room for what a request of so many ids comes to, args[0] on: slots [ids], held [ids + 1], whose first value is how many
 * follow, and records [3 * ids], absent ones and then those on their way. */
ss_granted ss_granted_of(Call *call, PyObject *const *args, int64_t ids, int32_t **held);

#endif
