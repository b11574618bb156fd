"""Hermes: a home directory of its own with one configuration, written once and then the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.plans import LOCAL_TOKEN, Download, FileWrite, LaunchPlan, ServedModel, Situation
from slotstream_cli.launching.words import has_option

PROVIDER = "slotstream"
HOME_VARIABLE = "HERMES_HOME"
UNUSED_KEY = "unused"
SIDE_TASKS = (
    *("vision", "compression", "title_generation", "approval", "skills_hub", "review", "mcp", "memory_query_rewrite"),
    *("tts_audio_tags", "triage_specifier", "kanban_decomposer", "profile_describer", "goal_judge", "curator"),
    *("monitor", "background_review", "moa_reference", "moa_aggregator"),
)
TASKS_WITH_SETTINGS = 3
REPLY_TOKENS = 4_096
TITLE_TOKENS = 64
PATIENCE_S = 1_800


class Hermes:
    """Hermes; see `Agent`."""

    name = "hermes"
    names: tuple[str, ...] = ("hermes", "hermes-agent")
    title = "Hermes"
    program = "hermes"
    install = "pip install hermes-agent"
    minimum_window = 65_536
    asks_version = False
    api_path = "/v1/chat/completions"

    def reads(self, situation: Situation) -> tuple[Path, ...]:
        """Return the configuration."""
        return (hermes_home(situation) / "config.yaml",)

    def downloads(self, situation: Situation) -> tuple[Download, ...]:
        """Return nothing."""
        return ()

    def check(self, situation: Situation) -> None:
        """Refuse a configuration without our provider."""
        path = self.reads(situation)[0]
        text = situation.files[path]
        if text is not None:
            _provider(_parsed(path, text), path)

    def plan(self, situation: Situation, served: ServedModel) -> LaunchPlan:
        """Return the command, and the configuration when there is none yet."""
        home = hermes_home(situation)
        path = home / "config.yaml"
        text = situation.files[path]
        files: tuple[FileWrite, ...] = ()
        notes: tuple[str, ...] = ()
        if text is None:
            key = UNUSED_KEY if served.token == LOCAL_TOKEN else served.token
            fresh = configuration(served, key=key)
            files = (FileWrite(path=path, text=fresh, shown=configuration(served, key=_shown_key(key))),)
        else:
            notes = _compared(_parsed(path, text), path, served)
        return LaunchPlan(
            arguments=_arguments(situation.arguments, served.model, home),
            variables={HOME_VARIABLE: str(home)},
            files=files,
            notes=notes,
        )


def hermes_home(situation: Situation) -> Path:
    """Return the directory Hermes keeps its configuration in for these launches."""
    chosen = situation.environment.get(HOME_VARIABLE)
    if not chosen:
        return situation.home / ".hermes-slotstream"
    return situation.directory / (situation.home / chosen[2:] if chosen.startswith("~/") else Path(chosen))


def configuration(served: ServedModel, *, key: str) -> str:
    """Return the configuration that is written once."""
    bare = "\n".join(f"  {name}: {{provider: main}}" for name in SIDE_TASKS[TASKS_WITH_SETTINGS:])
    return f"""\
model:
  provider: {PROVIDER}
  default: {_quoted(served.model)}
  context_length: {served.window_tokens}
providers:
  {PROVIDER}:
    base_url: {served.base_url}/v1
    api_key: {key if key == UNUSED_KEY else _quoted(key)}
    api_mode: chat_completions
    extra_body:
      max_tokens: {REPLY_TOKENS}
agent:
  reasoning_effort: none
  local_stream_stale_timeout: {PATIENCE_S}
auxiliary:
  vision:
    provider: main
    timeout: {PATIENCE_S}
  compression:
    provider: main
    timeout: {PATIENCE_S}
    extra_body:
      max_tokens: {REPLY_TOKENS}
      temperature: 0.2
      presence_penalty: 0
  title_generation:
    provider: main
    timeout: {PATIENCE_S}
    extra_body:
      max_tokens: {TITLE_TOKENS}
{bare}
compression:
  enabled: true
"""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shown_key(key: str) -> str:
    return key if key == UNUSED_KEY else "(hidden)"


def _parsed(path: Path, text: str) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise AgentRefused(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from error
    return document if isinstance(document, dict) else {}


def _at(document: object, *names: str) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _provider(document: dict[str, Any], path: Path) -> dict[str, Any]:
    provider = _at(document, "providers", PROVIDER)
    if not isinstance(provider, dict):
        raise AgentRefused(
            f"{path} has no {PROVIDER} provider; add it (docs/coding-agents.md has the text), or set {HOME_VARIABLE} "
            "to a new directory"
        )
    return provider


def _compared(document: dict[str, Any], path: Path, served: ServedModel) -> tuple[str, ...]:
    """Return what the user should know about their configuration and this server."""
    notes: list[str] = []
    address = str(_provider(document, path).get("base_url", ""))
    if not _same_server(address, served):
        notes.append(f"{path} does not point at port {served.port}: its base_url is {address or 'missing'}")
    window = _at(document, "model", "context_length")
    if isinstance(window, int) and window > served.window_tokens:
        raise AgentRefused(
            f"{path} sets context_length to {window:,}, more than the server's window of {served.window_tokens:,}; set "
            f"it to {served.window_tokens}, or restart the server with `--max-context {window}`"
        )
    if isinstance(window, int) and window < served.window_tokens:
        notes.append(f"{path} sets context_length to {window:,} of the server's {served.window_tokens:,} tokens")
    loose = [name for name in SIDE_TASKS if _at(document, "auxiliary", name, "provider") != "main"]
    if loose:
        notes.append(
            f"{path} does not set `provider: main` for these Hermes side tasks, which may ask hosted models: "
            + ", ".join(loose)
        )
    return tuple(notes)


def _same_server(address: str, served: ServedModel) -> bool:
    places = {f"http://{host}:{served.port}/v1" for host in ("127.0.0.1", "localhost", "[::1]")}
    return address.rstrip("/") in places


def _arguments(given: tuple[str, ...], model: str, home: Path) -> tuple[str, ...]:
    profile = () if has_option(given, "--profile", "-p") or home.parent.name == "profiles" else ("--profile", "default")
    if has_option(given, "--provider", "--model", "-m"):
        return (*profile, *given)
    flags = ("--provider", PROVIDER, "--model", model)
    if not given:
        return (*profile, "chat", *flags)
    at = 0
    while at < len(given) and given[at].startswith(("-p", "--profile")):
        at += 1 if "=" in given[at] or (given[at].startswith("-p") and given[at] != "-p") else 2
    if at < len(given) and given[at] == "chat":
        return (*profile, *given[: at + 1], *flags, *given[at + 1 :])
    return (*profile, *flags, *given)
