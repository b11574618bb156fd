"""Requests that lead to no call: nothing fits, nothing is needed, or a required value is missing."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tools.demo_model.data.documents import Split, Tool
from tools.demo_model.data.tool_catalogue import draw_entry, purposes_of
from tools.demo_model.data.tool_entries import draw_variant, exchange_with
from tools.demo_model.data.tool_exchanges import Exchange
from tools.demo_model.data.tool_lexicon import lexicon
from tools.demo_model.data.tool_parameters import Parameter, is_long
from tools.demo_model.data.tool_schemas import ask_for, draw_tool, exchange_for, plural
from tools.demo_model.data.tool_values import sample, spoken

_SMALL_TALK: tuple[tuple[str, str], ...] = (
    ("Hello!", "Hello! What can I do for you?"),
    ("Hi", "Hi! How can I help?"),
    ("Hey there", "Hello! How can I help you?"),
    ("Good morning", "Good morning! What would you like to do?"),
    ("Good evening!", "Good evening! How can I help?"),
    ("How are you?", "I am fine, thank you. What can I do for you?"),
    ("Thanks!", "You are welcome."),
    ("Thank you very much.", "You are welcome! Is there anything else?"),
    ("Great, thanks", "Glad I could help."),
    ("Ok.", "Let me know if you need anything else."),
    ("That is all for today.", "All right. Goodbye!"),
    ("Bye", "Goodbye!"),
    ("Who are you?", "I am a small language model. I can answer simple questions and call tools."),
    ("Are you a robot?", "I am a language model, a program that writes text."),
    ("What is your name?", "I have no name. I am a small language model."),
    ("Can you help me?", "Yes. Tell me what you need."),
    ("I have a question", "Please ask."),
    ("You are very helpful.", "Thank you! I am glad."),
    ("Tell me a joke.", "Why did the book go to the doctor? It had hurt its spine."),
    ("Wait a moment", "I will wait."),
    ("Never mind.", "All right. Tell me if you need something else."),
    ("Good night", "Good night! Sleep well."),
)
_HELD_OUT_SMALL_TALK: tuple[tuple[str, str], ...] = (
    ("Greetings, friend", "Hello! How can I help you?"),
    ("Much obliged!", "You are welcome."),
    ("See you later", "Goodbye!"),
)
_FACTS: tuple[tuple[str, str], ...] = (
    ("What color is grass?", "Grass is green."),
    ("How many days are in a week?", "A week has seven days."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("Which month comes after May?", "June comes after May."),
    ("What do cows drink?", "Cows drink water."),
    ("Is ice cold?", "Yes, ice is cold."),
    ("How many hours are in a day?", "A day has 24 hours."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("Do fish live in water?", "Yes, fish live in water."),
    ("What do bees make?", "Bees make honey."),
    ("What is a file?", "A file is a named piece of data that a computer keeps."),
    ("What is a folder?", "A folder is a place on a computer that holds files."),
)

_NO_TOOL = (
    "I have no tool to {purpose}.",
    "I can't {purpose}: none of my tools does that.",
    "Sorry, I have no tool for that.",
    "None of my tools can {purpose}.",
    "I am sorry, I cannot {purpose} with the tools I have.",
)
_NOTHING_AT_ALL = (
    "I have no tools here, so I cannot {purpose}.",
    "I cannot {purpose}: I have no tools in this chat.",
)


def unmet_request(rng: Random, split: Split, *, apart_from: Sequence[Tool] = ()) -> Exchange:
    """Returns a request for a tool that is not declared, with an answer that says so.

    Args:
        rng: where every choice comes from.
        split: the half of the words.
        apart_from: the declared tools, none of which may fit; none at all changes the answer.
    """
    served = purposes_of(apart_from)
    if rng.random() < 0.5:
        entry = draw_entry(rng)
        while entry.purpose in served:
            entry = draw_entry(rng)
        base, purpose = exchange_with(draw_variant(entry, rng), rng, split), entry.purpose
    else:
        tool = draw_tool(rng, split, largest=3)
        base, purpose = exchange_for(tool, rng, split), f"{tool.verb} {plural(tool.noun)}"
        named = base.request.find(tool.name)
        if named >= 0:
            base = replace(base, request=ask_for(tool, (), rng, held_out=split == "heldout"))
    reply = rng.choice(_NO_TOOL if apart_from else _NOTHING_AT_ALL).format(purpose=purpose)
    if apart_from and rng.random() < 0.35:
        reply += f" I only have {list_names(apart_from, rng)}."
    return Exchange(request=base.request, reply=reply, afterthought=_doubt(apart_from, purpose, rng))


def _doubt(tools: Sequence[Tool], purpose: str, rng: Random) -> str:
    if not tools:
        return f"The user wants to {purpose}. I have no tools, so I must say that."
    return rng.choice(
        (
            f"The user wants to {purpose}. I have {list_names(tools, rng)}. None of them fits.",
            f"To {purpose} I would need a tool, but none of mine does it. I will say so.",
            f"No declared tool can {purpose}. I should not call one.",
        )
    )


def list_names(tools: Sequence[Tool], rng: Random) -> str:
    """Returns the names of up to three tools, in words."""
    names = [tool["function"]["name"] for tool in tools]
    chosen = names if len(names) <= 3 else rng.sample(names, 3)
    return chosen[0] if len(chosen) == 1 else ", ".join(chosen[:-1]) + " and " + chosen[-1]


def needless_request(rng: Random, split: Split, tools: Sequence[Tool]) -> Exchange:
    """Returns a request that is answered directly although tools are declared."""
    draw = rng.random()
    if draw < 0.12 and 0 < len(tools) <= 3 and split == "train":
        question = rng.choice(("What tools do you have?", "Which tools can you use?", "What can you call?"))
        names = list_names(tools, rng)
        return Exchange(
            request=question, reply=f"I have {names}.", afterthought=f"My tools are {names}. No call is needed."
        )
    if draw < 0.4:
        question, answer = rng.choice(_SMALL_TALK if split == "train" else _HELD_OUT_SMALL_TALK)
        thought = "This is small talk. No tool is needed."
    elif draw < 0.6 and split == "train":
        question, answer = rng.choice(_FACTS)
        thought = "I know this. No tool is needed."
    elif draw < 0.75:
        question, answer, thought = _sum(rng)
    else:
        question, answer, thought = _given_fact(rng, split)
    return Exchange(request=question, reply=answer, afterthought=thought)


def _sum(rng: Random) -> tuple[str, str, str]:
    left, right = rng.randint(1, 10), rng.randint(1, 10)
    if rng.random() < 0.3 and left > right:
        return f"What is {left} minus {right}?", f"{left} minus {right} is {left - right}.", "That is easy to work out."
    total = left + right
    return f"What is {left} plus {right}?", f"{left} plus {right} is {total}.", f"{left} plus {right} makes {total}."


def _given_fact(rng: Random, split: Split) -> tuple[str, str, str]:
    words = lexicon(split)
    name, noun, city = rng.choice(words.first_names), rng.choice(words.nouns), rng.choice(words.cities)
    color, item = spoken(sample("color", rng, words)), rng.choice(words.items)
    fact, question, answer = rng.choice(
        (
            (f"My name is {name}.", "What is my name?", f"Your name is {name}."),
            (f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}."),
            (f"The {noun} is {color}.", f"What color is the {noun}?", f"The {noun} is {color}."),
            (f"{name} bought {item}.", f"What did {name} buy?", f"{name} bought {item}."),
            (f"I left the {noun} in {city}.", f"Where did I leave the {noun}?", f"You left the {noun} in {city}."),
            (f"{name} has a {color} {noun}.", f"Who has a {color} {noun}?", f"{name} has a {color} {noun}."),
        )
    )
    joined = rng.choice((f"{fact} {question}", f"{fact}\n\n{question}", f"Text: {fact}\nQuestion: {question}"))
    return joined, answer, "The answer is in the message. No tool is needed."


_MISSING: tuple[tuple[str, str, str, str], ...] = (
    # purpose, request, question, slot
    ("get the weather", "What's the weather?", "For which city?", "city"),
    ("get the weather", "How is the weather today?", "In which city?", "city"),
    ("get the time", "What time is it there?", "In which city?", "city"),
    ("read a file", "Read the file.", "Which file should I read?", "path"),
    ("read a file", "Show me the file please", "Which file do you mean?", "path"),
    ("delete a file", "Delete the file", "Which file should I delete?", "path"),
    ("list a folder", "What is in the folder?", "Which folder?", "folder"),
    ("run a command", "Run the command.", "Which command should I run?", "command"),
    ("fetch a page", "Fetch the page.", "What is its address?", "url"),
    ("set a timer", "Set a timer.", "For how many minutes?", "minutes"),
    ("set an alarm", "Set an alarm please.", "For what time?", "time"),
    ("play a song", "Play a song.", "Which song would you like to hear?", "title"),
    ("find a contact", "I need a phone number", "Whose number?", "person"),
    ("get a share price", "How is the stock doing?", "Which company do you mean?", "company"),
    ("calculate something", "Calculate something for me", "What should I calculate?", "expression"),
    ("search the web", "Search the web for me", "What should I search for?", "topic"),
    ("commit the changes", "Commit my changes", "What should the commit message be?", "sentence"),
    ("switch the branch", "Switch the branch", "To which branch?", "branch"),
    ("see the calendar", "What is on my calendar?", "For which day?", "date"),
)


def ask_back(rng: Random, split: Split) -> tuple[Exchange, Exchange]:
    """Returns a request that lacks a required value, answered by a question, and the exchange that follows it.

    Both declare the same tool; the second starts with the missing value and calls it.
    """
    if split == "train" and rng.random() < 0.4:
        return _ask_back_known(rng, split)
    while True:
        tool = draw_tool(rng, split, largest=3)
        missing = [part for part in tool.parameters if part.required and not isinstance(part.value, bool | dict)]
        if missing and not is_long(missing[0]):
            break
    part = missing[0]
    given = tuple(other for other in tool.given(rng) if other is not part)
    plain = replace(tool, parameters=(*given, part))
    request = ask_for(tool, given, rng, held_out=split == "heldout")
    question = _question_for(part, tool.noun, rng)
    full = exchange_for(
        replace(plain, parameters=tuple(replace(p, required=True) for p in plain.parameters)), rng, split
    )
    first = Exchange(
        request=request,
        reply=question,
        afterthought=f"{tool.name} needs {part.name}, but the user did not give it. I will ask.",
        tools=(tool.declare(),),
    )
    answer = rng.choice(("{v}", "{v}", "{v}, please", "The {l} is {v}", "{l}: {v}", "use {v}"))
    second = replace(full, request=answer.format(v=part.quoted_value, l=part.label), tools=(tool.declare(),))
    return first, second


def _question_for(part: Parameter, noun: str, rng: Random) -> str:
    return rng.choice(
        (
            f"Which {part.label} should I use?",
            f"What is the {part.label}?",
            f"What {part.label} do you want for the {noun}?",
            f"Please tell me the {part.label}.",
            f"I need the {part.label} for that. What is it?",
        )
    )


def _ask_back_known(rng: Random, split: Split) -> tuple[Exchange, Exchange]:
    purpose, request, question, slot = rng.choice(_MISSING)
    while True:
        entry = draw_entry(rng)
        if entry.purpose == purpose:
            break
    variant = draw_variant(entry, rng)
    bare = replace(entry, requests=(f"<{slot}>",), held_out_requests=(f"<{slot}>",))
    full = exchange_with(replace(variant, entry=bare), rng, split)
    needed = variant.argument_names[slot]
    first = Exchange(
        request=request,
        reply=question,
        afterthought=f"{variant.name} needs {needed}, but the user did not give it. I will ask.",
        tools=full.tools,
    )
    return first, replace(full, request=rng.choice(("{v}", "{v}", "{v}.", "{v} please")).format(v=full.request))
