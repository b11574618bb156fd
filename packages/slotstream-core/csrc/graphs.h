/* Ranges of launches that run again and again, as CUDA graphs.
 *
 * A launch is handed to a device in pieces of memory of the host, which it fetches over its bus, behind whatever copies have
 * asked for by then. What a graph launches lies on the device already (docs/log.md). */
#ifndef SLOTSTREAM_GRAPHS_H
#define SLOTSTREAM_GRAPHS_H

#include <stdint.h>

/* With the signatures of cudaStreamBeginCapture, cudaStreamEndCapture, cudaGraphInstantiate, cudaGraphLaunch,
 * cudaGraphExecDestroy and cudaGraphDestroy. All are null where there are no graphs. */
typedef struct ss_graph_functions {
    int32_t (*begin)(void *stream, int32_t mode);
    int32_t (*end)(void *stream, void **graph);
    int32_t (*make)(void **ready, void *graph, uint64_t flags);
    int32_t (*launch)(void *ready, void *stream);
    int32_t (*forget_ready)(void *ready);
    int32_t (*forget)(void *graph);
} ss_graph_functions;
#define SS_GRAPH_FUNCTIONS 6

/* Launches a range, in order, on the stream: 0, or a code. */
typedef int32_t (*ss_range_function)(void *what, int64_t first, int64_t last);

typedef struct ss_graphs ss_graphs;

/* Graphs on a stream; null without memory. */
ss_graphs *ss_graphs_create(const ss_graph_functions *functions, void *stream);
void ss_graphs_free(ss_graphs *graphs);

/* The graph of a range, ready to be launched; null where the range has to be launched itself: at its first run, which also
 * loads its kernels, and where no graph can be made of it, which is tried once. What its launches are given is what `launch`
 * gives them now, each time. */
void *ss_graph_of(ss_graphs *graphs, int64_t first, int64_t last, ss_range_function launch, void *what);

#endif
