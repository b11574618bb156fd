"""Conversations whose later calls depend on earlier ones: a coding agent at work, a contact looked up and mailed."""

from collections.abc import Callable
from random import Random

from tools.demo_model.data.documents import Split, Tool
from tools.demo_model.data.tool_entries import Entry, Variant, draw_variant
from tools.demo_model.data.tool_entries_code import CODE_ENTRIES
from tools.demo_model.data.tool_entries_daily import DAILY_ENTRIES
from tools.demo_model.data.tool_exchanges import Call, Exchange, Round
from tools.demo_model.data.tool_lexicon import Lexicon, lexicon
from tools.demo_model.data.tool_values import (
    Json,
    clock_time,
    content,
    email,
    fill,
    folder,
    path,
    person,
    sample,
    sentence,
    spoken,
    text_block,
)


def _variant(rng: Random, purpose: str, slot: str = "") -> Variant:
    """Returns a well-known tool for this purpose that has the slot."""
    entries: list[Entry] = [
        entry
        for entry in (*CODE_ENTRIES, *DAILY_ENTRIES)
        if entry.purpose == purpose and (not slot or any(part.slot == slot for part in entry.parameters))
    ]
    return draw_variant(rng.choice(entries), rng)


def _step(variant: Variant, values: dict[str, Json], result: str, thought: str) -> Round:
    arguments = {name: values[slot] for slot, name in variant.argument_names.items() if slot in values}
    return Round(calls=(Call(name=variant.name, arguments=arguments, result=result),), thought=thought)


def _exchange(request: str, rounds: list[Round], reply: str, afterthought: str, *variants: Variant) -> Exchange:
    tools: tuple[Tool, ...] = tuple(variant.tool for variant in variants)
    return Exchange(request=request, reply=reply, afterthought=afterthought, tools=tools, rounds=tuple(rounds))


def _write_then_read(rng: Random, words: Lexicon) -> list[Exchange]:
    writer, reader = _variant(rng, "write a file", "content"), _variant(rng, "read a file")
    where = path(rng, words)
    text = text_block(rng, words) if rng.random() < 0.4 else content(rng, words)
    ask = f"Create {where} with this content:\n{text}" if "\n" in text else f"Write '{text}' to {where}"
    write = _exchange(
        ask,
        [_step(writer, {"path": where, "content": text}, "ok", f"I will write {where} with {writer.name}.")],
        rng.choice((f"I wrote {where}.", f"Done, {where} is written.")),
        "The file is written.",
        writer,
        reader,
    )
    read = _exchange(
        rng.choice(
            ("Now show it to me.", "Read it back please", "What is in it now?", "Show me the file", "Check it.")
        ),
        [_step(reader, {"path": where}, text, f"They mean {where}. I will read it with {reader.name}.")],
        f"It contains:\n\n{text}",
        "I have the text.",
    )
    return [write, read]


def _list_then_read(rng: Random, words: Lexicon) -> list[Exchange]:
    lister, reader = _variant(rng, "list a folder"), _variant(rng, "read a file")
    where = folder(rng, words).rstrip("/")
    names = list(dict.fromkeys(path(rng, words).rsplit("/", 1)[-1] for _ in range(3)))
    chosen, text = rng.choice(names), content(rng, words)
    listing = _exchange(
        rng.choice((f"What files are in {where}?", f"List {where}", f"ls {where}")),
        [_step(lister, {"folder": where}, "\n".join(names), f"I will list {where} with {lister.name}.")],
        f"{where} contains " + ", ".join(names) + ".",
        "I have the list.",
        lister,
        reader,
    )
    target = f"{where}/{chosen}"
    reading = _exchange(
        rng.choice((f"Read {chosen}", f"Show me {chosen}.", f"What is in {chosen}?", f"Open {chosen} please")),
        [_step(reader, {"path": target}, text, f"{chosen} is in {where}, so the path is {target}.")],
        f"{target} contains: {text}",
        "I can answer now.",
    )
    return [listing, reading]


def _search_then_read(rng: Random, words: Lexicon) -> list[Exchange]:
    searcher, reader = _variant(rng, "search the files"), _variant(rng, "read a file")
    noun, where, text = rng.choice(words.nouns), path(rng, words), text_block(rng, words)
    request = rng.choice(
        (
            f"Find the file that mentions {noun} and show it to me.",
            f"Which file uses {noun}? Read it.",
            f"Search for {noun}, then open the file you find.",
        )
    )
    rounds = [
        _step(searcher, {"noun": noun}, f"{where}:{rng.randint(1, 90)}", f"First I search for {noun}."),
        _step(reader, {"path": where}, text, f"The match is in {where}. Now I read it."),
    ]
    return [_exchange(request, rounds, f"{noun} is in {where}:\n\n{text}", "I have both results.", searcher, reader)]


def _missing_then_found(rng: Random, words: Lexicon) -> list[Exchange]:
    reader, lister = _variant(rng, "read a file"), _variant(rng, "list a folder")
    where = folder(rng, words).rstrip("/")
    name, right = path(rng, words).rsplit("/", 1)[-1], path(rng, words).rsplit("/", 1)[-1]
    wrong, target, text = f"{where}/{name}", f"{where}/{right}", content(rng, words)
    rounds = [_step(reader, {"path": wrong}, "Error: file not found", f"I will read {wrong}.")]
    if rng.random() < 0.5:
        reply = f"There is no file {wrong}."
        return [_exchange(f"Read {wrong}", rounds, reply, "The file does not exist. I will say so.", reader, lister)]
    rounds.append(_step(lister, {"folder": where}, right, f"The file is missing. I will look into {where}."))
    reply = f"There is no {name} in {where}, only {right}. Should I read that?"
    first = _exchange(f"Read {wrong}", rounds, reply, "I should ask before I read another file.", reader, lister)
    second = _exchange(
        rng.choice(("Yes", "Yes, please.", "ok", "Yes, read that one")),
        [_step(reader, {"path": target}, text, f"They agree. The path is {target}.")],
        f"It says: {text}",
        "I have the text.",
    )
    return [first, second]


def _edit_then_test(rng: Random, words: Lexicon) -> list[Exchange]:
    editor, shell = _variant(rng, "change a file"), _variant(rng, "run a command")
    where, number = path(rng, words), rng.randint(0, 80)
    name, other = rng.choice(words.nouns), rng.randint(81, 160)
    old, new = f"{name} = {number}", f"{name} = {other}"
    test = rng.choice(("pytest -q", "cargo test", "npm test", "make test", f"pytest {folder(rng, words)}"))
    passed = rng.random() < 0.6
    outcome = f"{rng.randint(2, 30)} passed" if passed else f"FAILED: {name} is {other}"
    request = rng.choice(
        (
            f"In {where} change `{old}` to `{new}`, then run `{test}`.",
            f"Set {name} to {other} in {where} (the line is `{old}`, make it `{new}`) and run `{test}`",
        )
    )
    rounds = [
        _step(editor, {"path": where, "code_line": old, "code_line2": new}, "ok", f"First I edit {where}."),
        _step(shell, {"command": test}, outcome, f"The edit worked. Now I run {test}."),
    ]
    reply = f"I changed {where}. `{test}` says: {outcome}"
    return [_exchange(request, rounds, reply, "Both steps are done.", editor, shell)]


def _contact_then_mail(rng: Random, words: Lexicon) -> list[Exchange]:
    finder, mailer = _variant(rng, "find a contact"), _variant(rng, "send an email")
    name, address = person(rng, words), email(rng, words)
    title, text = spoken(sample("title", rng, words)), sentence(rng, words)
    found = rng.choice((address, f'{{"name": "{name}", "email": "{address}"}}', f"{name}: {address}"))
    request = rng.choice(
        (
            f'Send {name} a mail. The subject is "{title}" and the text is "{text}"',
            f"Look up {name} and email them '{text}' with the subject '{title}'",
        )
    )
    rounds = [
        _step(finder, {"person": name}, found, f"I need the address of {name} first."),
        _step(
            mailer,
            {"email": address, "title": title, "sentence": text},
            "sent",
            f"The address is {address}. Now I send the mail.",
        ),
    ]
    reply = rng.choice((f"I sent the mail to {address}.", f"Done. {name} gets it at {address}."))
    return [_exchange(request, rounds, reply, "The mail is sent.", finder, mailer)]


def _weather_then_more(rng: Random, words: Lexicon) -> list[Exchange]:
    weather, clock = _variant(rng, "get the weather"), _variant(rng, "get the time")
    city = spoken(sample("city", rng, words))
    degrees, sky, hour = spoken(sample("temp", rng, words)), spoken(sample("sky", rng, words)), clock_time(rng, words)
    first = _exchange(
        rng.choice((f"What's the weather in {city}?", f"How warm is it in {city}?", f"Weather in {city} please")),
        [_step(weather, {"city": city}, f"{degrees} degrees, {sky}", f"I will ask {weather.name} about {city}.")],
        f"It is {degrees} degrees and {sky} in {city}.",
        "I have the weather.",
        weather,
        clock,
    )
    second = _exchange(
        rng.choice(("And what time is it there?", "What time is it there?", "And the time?")),
        [_step(clock, {"city": city}, hour, f"There means {city}. I will call {clock.name}.")],
        f"It is {hour} in {city}.",
        "I have the time.",
    )
    other = spoken(sample("city", rng, words))
    third = _exchange(
        rng.choice((f"And the weather in {other}?", f"What about the weather in {other}?")),
        [_step(weather, {"city": other}, f"{degrees} degrees", f"Now the same for {other}.")],
        f"It is {degrees} degrees in {other}.",
        "I have the weather.",
    )
    return [first, second] if rng.random() < 0.5 else [first, third]


_SCRIPTS: tuple[tuple[str, str, str, str], ...] = (
    # what it is called, ending, text, command
    ("Python script", "py", 'print("<said>")', "python <path>"),
    ("python file", "py", 'print("<said>")', "python <path>"),
    ("python program", "py", 'print("<said>")', "python3 <path>"),
    ("shell script", "sh", 'echo "<said>"', "sh <path>"),
    ("bash script", "sh", 'echo "<said>"', "bash <path>"),
    ("JavaScript file", "js", 'console.log("<said>");', "node <path>"),
)


def _script_then_run(rng: Random, words: Lexicon) -> list[Exchange]:
    writer, shell = _variant(rng, "write a file", "content"), _variant(rng, "run a command")
    kind, ending, template, runner = rng.choice(_SCRIPTS)
    where = rng.choice((f"{rng.choice(words.stems)}.{ending}", f"{folder(rng, words).rstrip('/')}/hello.{ending}"))
    said = rng.choice(
        (sentence(rng, words), f"Hello, {rng.choice(words.first_names)}!", f"Hello {rng.choice(words.cities)}")
    )
    said = said.replace('"', "")
    text, line = fill(template, {"said": said}), fill(runner, {"path": where})
    request = rng.choice(
        (
            f"Write a {kind} {where} that prints '{said}'",
            f'Create a {kind} {where} that prints "{said}"',
            f"I need a {kind} called {where}. It should print: {said}",
            f"Make {where}, a {kind} that prints {said}",
        )
    )
    write = _exchange(
        request,
        [_step(writer, {"path": where, "content": text}, "ok", f"I will write one line that prints it to {where}.")],
        rng.choice((f"I wrote {where}.", f"{where} is ready.", f"Done: {where} prints {said}")),
        "The file is written.",
        writer,
        shell,
    )
    if rng.random() < 0.35:
        return [write]
    run = _exchange(
        rng.choice(("Run it.", "Now run it", "Please run it.", "Run the script", "What does it print?")),
        [_step(shell, {"command": line}, said, f"I will run {where} with {shell.name}.")],
        rng.choice((f"It printed: {said}", f"The output is: {said}")),
        "I have the output.",
    )
    return [write, run]


_CHAINS: tuple[Callable[[Random, Lexicon], list[Exchange]], ...] = (
    _write_then_read,
    _list_then_read,
    _search_then_read,
    _missing_then_found,
    _edit_then_test,
    _contact_then_mail,
    _weather_then_more,
    _script_then_run,
)


def draw_chain(rng: Random, split: Split) -> list[Exchange]:
    """Returns one or two exchanges of which a later call uses what came before."""
    return rng.choice(_CHAINS)(rng, lexicon(split))
