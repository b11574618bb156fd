#include "graphs.h"

#include <stdlib.h>
#include <unistd.h>

#define CAPTURE_RELAXED 2 /* other threads do what they like meanwhile */

typedef struct range {
    int64_t first, last;
    int tried;
    void *ready; /* null: none was made */
} range;

struct ss_graphs {
    ss_graph_functions functions;
    void *stream;
    pid_t owner; /* a forked child has no device */
    range *ranges;
    int64_t count, room;
};

ss_graphs *ss_graphs_create(const ss_graph_functions *functions, void *stream) {
    ss_graphs *graphs = calloc(1, sizeof *graphs);
    if (graphs) *graphs = (ss_graphs){.functions = *functions, .stream = stream, .owner = getpid()};
    return graphs;
}

void ss_graphs_free(ss_graphs *graphs) {
    if (!graphs) return;
    for (int64_t i = 0; i < graphs->count && graphs->owner == getpid(); i++)
        if (graphs->ranges[i].ready) graphs->functions.forget_ready(graphs->ranges[i].ready);
    free(graphs->ranges);
    free(graphs);
}

/* Remember a range that runs for the first time; without memory it does so again. */
static void remember(ss_graphs *graphs, int64_t first, int64_t last) {
    if (graphs->count == graphs->room) {
        int64_t room = graphs->room ? 2 * graphs->room : 64;
        range *more = realloc(graphs->ranges, (size_t)room * sizeof *more);
        if (!more) return;
        graphs->ranges = more, graphs->room = room;
    }
    graphs->ranges[graphs->count++] = (range){.first = first, .last = last};
}

static void *make(const ss_graphs *graphs, const range *one, ss_range_function launch, void *what) {
    const ss_graph_functions *f = &graphs->functions;
    void *graph = NULL, *ready = NULL;
    if (f->begin(graphs->stream, CAPTURE_RELAXED)) return NULL;
    int32_t refused = launch(what, one->first, one->last);
    int32_t ended = f->end(graphs->stream, &graph); /* also after what was refused: the stream has to be itself again */
    if (!refused && !ended && graph && f->make(&ready, graph, 0)) ready = NULL;
    if (graph) f->forget(graph);
    return ready;
}

void *ss_graph_of(ss_graphs *graphs, int64_t first, int64_t last, ss_range_function launch, void *what) {
    if (!graphs->functions.begin) return NULL;
    for (int64_t i = 0; i < graphs->count; i++) {
        range *one = &graphs->ranges[i];
        if (one->first != first || one->last != last) continue;
        if (!one->tried) one->tried = 1, one->ready = make(graphs, one, launch, what);
        return one->ready;
    }
    remember(graphs, first, last);
    return NULL;
}
