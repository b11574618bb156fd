"""Arguments for the functions of csrc/launches_module.c."""

from typing import Any

import numpy as np

from tests.core.native.fuzz_maker import Address, Maker


def program(m: Maker) -> list[Any]:
    entries, counts = m.up_to(6), [m.up_to(3, 0) for _ in range(m.up_to(5))]
    launches = np.zeros((len(counts), 5), np.int64)
    for i, count in enumerate(counts):
        launches[i] = m.up_to(9), m.up_to(9), m.up_to(1024), sum(counts[:i]), count
    early = m.random.choice((0, m.early))
    functions = (m.launch, early, m.query, *(m.graphs if m.random.random() < 0.5 else [Address(0)] * 6))
    sent, taken = np.zeros(64, np.uint64), np.zeros(1, np.uint32)  # a wrong table may be longer
    m.kept += [sent, taken]
    addresses = [Address(each.__array_interface__["data"][0]) for each in (sent, taken)]
    return [
        *(functions, 7, launches, m.ids(entries, sum(counts)), np.zeros(entries, np.uint64)),
        *(np.zeros(m.up_to(6), np.uint64), *addresses, 0.001),
    ]


def launch(m: Maker) -> list[Any]:
    described = program(m)
    count = len(described[2]) - 1
    first = m.up_to(count, 0)
    return [m.module.program(*described), first, m.up_to(count, first)]


def await_number(m: Maker) -> list[Any]:
    word, number = np.zeros(1, np.uint32), m.up_to(5, 0)
    word[0] = number
    m.kept.append(word)
    return [Address(word.__array_interface__["data"][0]), number, 0.001, m.query, 7]


RECIPES = {recipe.__name__: recipe for recipe in (program, launch, await_number)}
