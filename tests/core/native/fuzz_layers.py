"""Arguments for the functions of csrc/launched_layers_module.c."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.core.native.fuzz_launches import program
from tests.core.native.fuzz_maker import Address, Maker
from tests.core.native.fuzz_recipes import Reading, limits, with_tickets


def told_words(m: Maker, reading: Reading, number: int, top: int, *, foreseen: bool) -> list[Any]:
    """Words that hold a number already, so that nobody waits."""
    word = np.full(1, number, np.uint32)
    m.lasting.append(word)
    address = word.__array_interface__["data"][0]
    logits = m.floats(1, reading.experts)[0] if foreseen else None
    slots = np.zeros(top, np.int32)
    ids = m.ids(reading.experts, top)
    return [
        Address(address),
        ids,
        Address(address) if foreseen else 0,
        logits,
        slots,
        np.zeros(1, np.uint64),
        0.001,
        m.query,
        7,
    ]


def layer_words(m: Maker) -> list[Any]:
    return told_words(m, Reading(m), m.up_to(5, 0), m.up_to(4), foreseen=m.random.random() < 0.5)


def take_layer(m: Maker) -> list[Any]:
    reading, made = with_tickets(m)
    top, number, foreseen = m.up_to(4), m.up_to(5), m.random.random() < 0.5
    words = m.module.layer_words(*told_words(m, reading, number, top, foreseen=foreseen))
    described = program(m)
    count = len(described[2]) - 1
    first, after = m.up_to(count, 0), m.up_to(count, 0)
    learnt: list[Any] = [None, None]
    if m.random.random() < 0.5:
        ranks = m.up_to(reading.experts)
        learnt = [m.numbers.random(ranks), m.ids(reading.experts, ranks)]
    target: list[Any] = [-1, None, None]
    if foreseen:
        ranks = m.up_to(reading.experts)
        target = [m.random.randrange(reading.layers), m.numbers.random(ranks), m.ids(9, ranks)]
    return [
        *(words, m.module.program(*described), made, m.random.randrange(reading.layers)),
        *(
            first,
            m.up_to(count, first),
            number,
            after,
            m.up_to(count, after),
            m.up_to(5),
            *learnt,
            0.25,
            *target,
            m.random.random(),
            *limits(m),
        ),
        *(np.zeros(count, np.int32) for count in (top, top + 1, 3 * top)),
        *(np.zeros(5 + 3 * top, np.int64), m.up_to(20)),
    ]


def settle_layer(m: Maker) -> list[Any]:
    top = m.up_to(4)
    return [with_tickets(m)[1], np.zeros(3 * top, np.int32), np.zeros(5 + 3 * top, np.int64), m.up_to(20)]


RECIPES = {recipe.__name__: recipe for recipe in (layer_words, take_layer, settle_layer)}
