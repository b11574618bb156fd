"""Codex: `-c` settings for one run and a model catalog of our own; its config.toml stays as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from slotstream_cli.launching.codex_words import read_line
from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.plans import LOCAL_TOKEN, Download, FileWrite, LaunchPlan, ServedModel, Situation

PATIENCE_MS = 1_800_000
KEY_VARIABLE = "SLOTSTREAM_API_KEY"
PROMPT_URL = "https://raw.githubusercontent.com/openai/codex/rust-v{version}/codex-rs/models-manager/prompt.md"
LEAST_PROMPT = 1_000
CLOUD = frozenset({"cloud", "cloud-tasks"})
VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+(?:[-.][0-9A-Za-z]+)*")
DESCRIPTION = "Runs on this machine through Slotstream."
EFFORTS = {
    "low": "Thinks briefly before answering.",
    "medium": "Thinks before answering.",
    "high": "Thinks at length before answering.",
}


class Codex:
    """Codex; see `Agent`."""

    name = "codex"
    names: tuple[str, ...] = ("codex",)
    title = "Codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    minimum_window = 32_768
    asks_version = True
    api_path = "/v1/responses"

    def reads(self, situation: Situation) -> tuple[Path, ...]:
        """Return where this Codex version's instructions are kept."""
        return (_instructions_file(situation),)

    def downloads(self, situation: Situation) -> tuple[Download, ...]:
        """Return this version's instructions, unless they are there."""
        path = _instructions_file(situation)
        if is_prompt(situation.files[path]):
            return ()
        version = _version(situation)
        what = f"Codex {version}'s instructions"
        return (Download(url=PROMPT_URL.format(version=version), path=path, what=what),)

    def check(self, situation: Situation) -> None:
        """Refuse what does not run on this machine."""
        line = read_line(situation.arguments)
        if line.commands and line.commands[0] in CLOUD:
            raise AgentRefused(
                f"`codex {line.commands[0]}` runs tasks on OpenAI's servers, not on this machine; run it directly"
            )
        if "--output-schema" in line.options:
            raise AgentRefused(
                "`--output-schema` asks for a reply that follows a JSON schema, which this server cannot promise; "
                "run the task without it"
            )
        _version(situation)

    def plan(self, situation: Situation, served: ServedModel) -> LaunchPlan:
        """Return the run's settings, behind the deepest subcommand, and the catalog they name."""
        self.check(situation)
        path = situation.state / "codex" / f"catalog-{_version(situation)}-{served.window_tokens}.json"
        prompt = situation.files[_instructions_file(situation)]
        document = catalog(served, prompt or "")
        shown = {**document, "base_instructions": f"({len(prompt or ''):,} characters)"}
        line = read_line(situation.arguments)
        settings = [word for setting in _settings(served, path) for word in ("-c", setting)]
        has_key = served.token != LOCAL_TOKEN
        return LaunchPlan(
            arguments=(*line.before, *settings, *line.settings, *line.after),
            variables={KEY_VARIABLE: served.token} if has_key else {},
            files=(
                FileWrite(
                    path=path,
                    text=json.dumps({"models": [document]}, indent=2) + "\n",
                    shown=json.dumps({"models": [shown]}, indent=2),
                ),
            ),
        )


def catalog(served: ServedModel, instructions: str) -> dict[str, object]:
    """Return how Codex's model catalog describes the served model."""
    return {
        "slug": served.model,
        "display_name": f"{served.title} via Slotstream",
        "description": DESCRIPTION,
        "default_reasoning_level": None,
        "supported_reasoning_levels": [{"effort": name, "description": text} for name, text in EFFORTS.items()],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": instructions,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "supports_parallel_tool_calls": False,
        "experimental_supported_tools": [],
        "context_window": served.window_tokens,
        "max_context_window": served.window_tokens,
    }


def is_prompt(text: str | None) -> bool:
    """Whether a text can be Codex's instructions rather than an error page."""
    return text is not None and len(text) > LEAST_PROMPT and "Codex" in text and not text.lstrip().startswith("<")


def _settings(served: ServedModel, path: Path) -> list[str]:
    key = "" if served.token == LOCAL_TOKEN else f', env_key="{KEY_VARIABLE}"'
    provider = f'name="Slotstream", base_url="{served.base_url}/v1", wire_api="responses"{key}'
    return [
        f"model={json.dumps(served.model)}",
        'model_provider="slotstream"',
        f"model_catalog_json={json.dumps(str(path), ensure_ascii=False)}",
        f"model_providers.slotstream={{{provider}, stream_idle_timeout_ms={PATIENCE_MS}}}",
    ]


def _version(situation: Situation) -> str:
    found = VERSION.search(situation.version)
    if found is None:
        raise AgentRefused(f"`codex --version` says {situation.version[:80]!r}, which has no version number")
    return found[0]


def _instructions_file(situation: Situation) -> Path:
    return situation.state / "codex" / f"instructions-{_version(situation)}.md"
