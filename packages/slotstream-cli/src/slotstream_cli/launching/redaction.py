"""What a dry run prints: the plan with everything that could be a secret hidden."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from slotstream_cli.launching.plans import LOCAL_TOKEN

__all__ = ["HIDDEN", "is_secret", "redacted_arguments", "redacted_json", "redacted_value", "shown_command"]

HIDDEN = "(hidden)"
SECRETS = ("key", "token", "secret", "password", "passwd", "credential", "authorization", "cookie")
ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)=(?P<value>.*)", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a value of this name should not be shown; names that end in `tokens` count something."""
    lowered = name.lower()
    return not lowered.endswith("tokens") and any(word in lowered for word in SECRETS)


def redacted_value(name: str, value: str) -> str:
    """Return a variable's value as it may be shown; JSON values are searched through."""
    if is_secret(name):
        return value if value in ("", LOCAL_TOKEN) else HIDDEN
    return _redacted_text(value)


def redacted_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line as it may be shown."""
    shown: list[str] = []
    secret_follows = False
    for word in arguments:
        if secret_follows and not word.startswith("-"):
            shown.append(word if word == LOCAL_TOKEN else HIDDEN)
            secret_follows = False
            continue
        secret_follows = word.startswith("-") and "=" not in word and is_secret(word)
        found = ASSIGNMENT.fullmatch(word.lstrip("-"))
        if found and is_secret(found["name"]):
            lead = word[: len(word) - len(word.lstrip("-"))]
            value = found["value"] if found["value"] in ("", LOCAL_TOKEN) else HIDDEN
            shown.append(f"{lead}{found['name']}={value}")
        else:
            shown.append(_redacted_text(word))
    return shown


def shown_command(words: Iterable[str]) -> str:
    """Return words as a shell would take them."""
    return shlex.join(words)


def _redacted_text(text: str) -> str:
    """Return a text with the secrets of its JSON, when it is a JSON object, or of an inline table hidden."""
    if text.lstrip().startswith("{"):
        try:
            return json.dumps(redacted_json(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return re.sub(
        r'(?P<name>[A-Za-z0-9_.-]+)(?P<mark>"?\s*[=:]\s*)"(?P<value>[^"]*)"',
        lambda found: (
            found[0]
            if not is_secret(found["name"]) or found["value"] in ("", LOCAL_TOKEN) or found["name"] == "env_key"
            else f'{found["name"]}{found["mark"]}"{HIDDEN}"'
        ),
        text,
    )


def redacted_json(value: Any) -> Any:
    """Return a JSON value with the secrets in it hidden."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if is_secret(name) and not isinstance(inner, Mapping | list) and inner not in ("", LOCAL_TOKEN, None)
            else redacted_json(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [redacted_json(inner) for inner in value]
    return value
