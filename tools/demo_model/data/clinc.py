"""Short requests to an assistant, of CLINC150, as prompts for tools that are named after what is wanted.

Source: the oos-eval data set of clinc, CC BY 3.0.  The source gives requests and intents; here an intent becomes a
tool that takes the user's words, stands beside tools of other intents, and is called or missed.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from tools.demo_model.data.corpus_rows import read_rows
from tools.demo_model.data.documents import ChatDocument, Tool, assistant, chat_document, tool_call, user
from tools.demo_model.data.tool_exchanges import draw_system, make_tool
from tools.demo_model.data.tool_parameters import restyle

SOURCE = "clinc"
_TALK = {
    "greeting": ("Hello! How can I help you?", "Hi! What can I do for you?"),
    "goodbye": ("Goodbye!", "Goodbye! Have a nice day."),
    "thank_you": ("You are welcome.", "You are welcome! Is there anything else?"),
    "are_you_a_bot": ("Yes, I am a language model.", "I am a program, a small language model."),
    "what_is_your_name": ("I have no name. I am a small language model.",),
    "do_you_have_pets": ("No, I am a program and have no pets.",),
    "how_old_are_you": ("I am a program, so I have no age.",),
    "where_are_you_from": ("I am a program and come from no place.",),
}
_SKIPPED = {
    *("yes", "no", "maybe", "repeat", "cancel", "what_can_i_ask_you", "who_made_you", "meaning_of_life", "user_name"),
    *("what_are_your_hobbies", "who_do_you_work_for", "fun_fact", "tell_joke", "flip_coin", "w2"),
    *("replacement_card_duration", "mpg", "apr", "uber", "gas", "text", "order", "date", "meaning_of_life"),
}
_NO_TOOL = ("I have no tool for that.", "None of my tools can do that.", "Sorry, I cannot do that with my tools.")
_PARAMETERS = ("request", "query", "text", "input", "utterance", "message")


def generate_from(path: Path, rng: Random, *, share: float = 0.22) -> Iterator[ChatDocument]:
    """Yields a share of the requests as documents: two thirds call, the others are refused or answered.

    Raises:
        CorpusError: the file cannot be read.
    """
    rows = [row for row in read_rows(path) if isinstance(row, list) and len(row) == 2]
    intents = sorted({str(intent) for _, intent in rows} - _SKIPPED - set(_TALK))
    for text, intent in rows:
        if rng.random() >= share or intent in _SKIPPED:
            continue
        yield _rewrite(str(text).strip(), str(intent), intents, rng)


def _rewrite(text: str, intent: str, intents: list[str], rng: Random) -> ChatDocument:
    style = rng.choice(("snake", "snake", "snake", "camel", "kebab"))
    parameter = rng.choice(_PARAMETERS)
    others = rng.sample([other for other in intents if not _akin(other, intent)], rng.choice((1, 2, 2, 3, 4)))
    tools = [_tool(other, style, parameter, rng) for other in others]
    thinks = rng.random() < 0.15
    plain = intent.replace("_", " ")
    name = restyle(intent, style)
    if intent in _TALK:
        reply = assistant(
            rng.choice(_TALK[intent]), reasoning="This is small talk. No tool is needed." if thinks else None
        )
    elif rng.random() < 0.25:
        thought = f"This is about {plain}. No tool of mine is for that."
        reply = assistant(rng.choice(_NO_TOOL), reasoning=thought if thinks else None)
    else:
        tools.append(_tool(intent, style, parameter, rng))
        thought = f"This is about {plain}, so {name} fits."
        reply = assistant("", reasoning=thought if thinks else None, calls=[tool_call(name, {parameter: text})])
    rng.shuffle(tools)
    messages = [user(text), reply]
    system_text = draw_system(rng) if rng.random() < 0.3 else ""
    if system_text:
        messages.insert(0, {"role": "system", "content": system_text})
    return chat_document(SOURCE, messages, tools=tools, enable_thinking=thinks, stage="pretrain")


def _akin(left: str, right: str) -> bool:
    """Returns whether two intents share a word, so that either tool might fit."""
    return bool(set(left.split("_")) & set(right.split("_")))


def _tool(intent: str, style: str, parameter: str, rng: Random) -> Tool:
    plain = intent.replace("_", " ")
    description = rng.choice(
        (f"Handles requests about {plain}.", f"Use for {plain}.", f"{plain.capitalize()}.", f"For questions on {plain}")
    )
    said = {"type": "string", "description": "The words of the user."} if rng.random() < 0.6 else {"type": "string"}
    return make_tool(restyle(intent, style), description, {parameter: {**said}}, (parameter,))
