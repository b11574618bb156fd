"""The layers computed at once on the host: compiled products and pieces on numpy views, for the CPU backend.

On a CPU the lazy graph costs more than a small model's arithmetic: some fifteen microseconds an operation and eighty a
wait. Here a layer is a few dozen calls into compiled code. The MLX layers stay the reference and the fallback; each
class here is one of them with the same weights, arguments and states, and its results are evaluated arrays.
"""
