"""Signatures of thinking blocks.

A signature holds the reasoning itself, so that a client which sends the block back without its text, as it must when it
asked for the text to be left out, still gives the model its earlier reasoning.  It is no secret and no seal.
"""

import base64
import binascii

from slotstream_serve.errors import invalid

PREFIX = "slotstream.thinking.v1."


def sign_thinking(reasoning: str) -> str:
    """Return the signature of a thinking block."""
    return PREFIX + base64.b64encode(reasoning.encode("utf-8", "surrogatepass")).decode("ascii")


def restored_thinking(thinking: str, signature: str | None, *, path: str) -> str:
    """Return the reasoning of a thinking block that came back.

    Args:
        thinking: The text it came back with, perhaps none.
        signature: Its signature; one of another provider holds nothing that can be read here.
        path: Where the block is in the request.

    Raises:
        Refused: The signature is one of ours, but damaged, and there is no text to use instead.
    """
    if signature is None or not signature.startswith(PREFIX):
        return thinking
    try:
        return base64.b64decode(signature[len(PREFIX) :], validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        if thinking:
            return thinking
        raise invalid(
            f"{path}.signature is damaged, and the block has no text; "
            "send the block as it was returned, or leave it out",
            param=f"{path}.signature",
        ) from None
