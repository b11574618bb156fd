"""What a story plot is: beats in order of cause and effect, with alternatives for each.

Slots that every plot may use (see ``casting``): the hero ``h`` with ``he him his himself kind intro``; the friend
``f`` with ``fhe fhim fhis fkind fintro``; an elder ``g`` with ``ghe ghim ghis``; a thing ``t`` and the same with an
adjective ``tt``; ``home``, the places ``spot spot2 spot3``, ``time``, ``weather``, ``food``, ``skill``, ``fear``,
``sad``, ``glad``, ``number``.  A variant adds slots of its own, which tie the cause to the solution.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """One step of a plot, in several wordings; short stories leave optional beats out."""

    wordings: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A story frame.

    Attributes:
        name: key of the frame, also used in documents' statistics.
        clause: what the hero did, to follow "a fox who": this ties the request to the story.
        outcome: how it ended, one sentence without its full stop.
        theme: a noun phrase, to follow "a story about".
        lesson: one sentence without its full stop.
        titles: titles, without a full stop.
        variants: slots that hang together, drawn as one; ``t_pool`` limits the thing to a listing.
        things: what the thing may be, as a listing, where a variant does not say; empty for anything.
        beats: the steps, in order.
        questions: what may be asked about the story, each with its answer.
        sea: whether the plot also works under water.
        heldout: whether only held-out documents use the plot.
    """

    name: str
    clause: str
    outcome: str
    theme: str
    lesson: str
    titles: tuple[str, ...]
    beats: tuple[Beat, ...]
    questions: tuple[tuple[str, str], ...]
    variants: tuple[Mapping[str, str], ...] = field(default=({},))
    things: str = ""
    sea: bool = False
    heldout: bool = False


def must(*wordings: str) -> Beat:
    """Returns a step that every telling has."""
    return Beat(wordings=wordings)


def may(*wordings: str) -> Beat:
    """Returns a step that a short telling leaves out."""
    return Beat(wordings=wordings, optional=True)
