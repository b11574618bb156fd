"""Layers whose work for one row is a few CUDA kernels of our own instead of a hundred operations of MLX.

Handing an operation over costs the host more than an H200 needs to compute it, so a layer is done sooner the fewer
there are. `kernels` states what a kernel is and compiles it; the other modules hold the source of a part's kernels and
the layer class that launches them. Passes of more rows, and whatever a part does not support, go the way of the class
it derives from.

`launching` launches kernels without MLX, many by one call.
"""
