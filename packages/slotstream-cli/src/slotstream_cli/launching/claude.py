"""Claude Code: variables and `--settings` for one run; its own settings files and login stay as they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from slotstream_cli.launching.errors import AgentRefused, NotPlainJson
from slotstream_cli.launching.json_text import ABSENT, JsonText
from slotstream_cli.launching.plans import LOCAL_TOKEN, Download, FileWrite, LaunchPlan, ServedModel, Situation
from slotstream_cli.launching.redaction import redacted_json
from slotstream_cli.launching.words import option_words

PROVIDER_SWITCHES = tuple(
    f"CLAUDE_CODE_USE_{name}"
    for name in ("BEDROCK", "VERTEX", "FOUNDRY", "ANTHROPIC_AWS", "ANTHROPIC_GOOGLE_CLOUD", "MANTLE", "GATEWAY")
)
MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    *(f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("OPUS", "SONNET", "HAIKU", "FABLE")),
)
PATIENCE_MS = "1800000"
DEFAULTS = {
    "MAX_THINKING_TOKENS": "0",
    "API_TIMEOUT_MS": PATIENCE_MS,
    "CLAUDE_STREAM_IDLE_TIMEOUT_MS": PATIENCE_MS,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
HOSTED_TOOL = "WebSearch"
ROOMY_WINDOW = 65_536


class ClaudeCode:
    """Claude Code; see `Agent`."""

    name = "claude"
    names: tuple[str, ...] = ("claude", "claude-code")
    title = "Claude Code"
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code"
    minimum_window = 32_768
    asks_version = False
    api_path = "/v1/messages/count_tokens"

    def reads(self, situation: Situation) -> tuple[Path, ...]:
        """Return the settings file of the user's `--settings`, when it names one."""
        given = _settings_argument(situation.arguments)[0]
        return () if given is None or _is_inline(given) else (_path(given, situation),)

    def downloads(self, situation: Situation) -> tuple[Download, ...]:
        """Return nothing."""
        return ()

    def check(self, situation: Situation) -> None:
        """Refuse settings that cannot be merged with the connection."""
        _merged_settings(situation, {})

    def plan(self, situation: Situation, served: ServedModel) -> LaunchPlan:
        """Return the run's variables and settings."""
        variables = {
            "ANTHROPIC_BASE_URL": served.base_url,
            "ANTHROPIC_AUTH_TOKEN": served.token,
            **dict.fromkeys(MODEL_VARIABLES, served.model),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.window_tokens),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.max_output_tokens),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            **{name: situation.environment.get(name, value) for name, value in DEFAULTS.items()},
        }
        settings, arguments = _merged_settings(situation, variables)
        notes: tuple[str, ...] = ()
        if served.window_tokens < ROOMY_WINDOW:
            notes = (
                f"a window of {served.window_tokens:,} tokens leaves little room beside {self.title}'s instructions; "
                f"`slotstream serve --max-context {ROOMY_WINDOW}` gives more, at the price of memory",
            )
        files: tuple[FileWrite, ...] = ()
        if served.token != LOCAL_TOKEN:  # other users can see command lines, so a real key goes by a private file
            digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
            path = situation.state / "claude" / f"settings-{digest}.json"
            shown = json.dumps(redacted_json(json.loads(settings)), indent=2)
            files, settings = (FileWrite(path=path, text=settings, shown=shown),), str(path)
        return LaunchPlan(
            arguments=("--settings", settings, *arguments),
            variables=variables,
            files=files,
            removed=("ANTHROPIC_API_KEY", *PROVIDER_SWITCHES),
            notes=notes,
        )


def _settings_argument(arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return the user's `--settings` and their other arguments; the last one counts, as in Claude Code itself."""
    found = option_words(arguments, ["--settings"])
    kept = list(arguments)
    for start, end, _value in reversed(found):
        del kept[start:end]
    if not found:
        return None, arguments
    value = found[-1][2]
    if value is None:
        raise AgentRefused("--settings needs a value: JSON, or the path of a JSON file")
    return value, tuple(kept)


def _merged_settings(situation: Situation, variables: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the JSON for `--settings` and the user's other arguments."""
    given, arguments = _settings_argument(situation.arguments)
    where = "--settings" if given is None or _is_inline(given) else str(_path(given, situation))
    text: str | None = "{}" if given is None else given
    if given is not None and not _is_inline(given):
        text = situation.files[_path(given, situation)]
        if text is None:
            raise AgentRefused(f"the settings file {where} cannot be read; give an existing file, or JSON")
    try:
        settings = JsonText(text or "")
        for name, value in variables.items():
            settings = settings.with_value(["env", name], value)
        for switch in PROVIDER_SWITCHES:
            settings = settings.with_value(["env", switch], "0")
        settings = settings.with_value(["env", "ANTHROPIC_API_KEY"], "").with_value(["apiKeyHelper"], "")
        denied = settings.get("permissions", "deny")
        if denied is ABSENT or HOSTED_TOOL not in denied:
            settings = settings.with_element(["permissions", "deny"], HOSTED_TOOL)
    except (NotPlainJson, TypeError) as error:
        raise AgentRefused(f"{where} cannot be merged with the connection: {error}") from error
    return settings.text, arguments


def _is_inline(value: str) -> bool:
    return value.lstrip().startswith("{")


def _path(value: str, situation: Situation) -> Path:
    expanded = situation.home / value[2:] if value.startswith("~/") else Path(value)
    return situation.directory / expanded
