"""How Pi is connected."""

import json
from typing import Any

import pytest

from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.pi import Pi
from slotstream_cli.launching.plans import LaunchPlan
from tests.cli.launching.situations import HOME, MODEL, served, situation

PI = Pi()
FILE = HOME / ".pi" / "agent" / "models.json"
OURS = ("--provider", "slotstream", "--model", MODEL, "--thinking", "off")


def plan(*arguments: str, text: str | None = None, **server: Any) -> LaunchPlan:
    return PI.plan(situation(*arguments, files={FILE: text}), served(**server))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], [*OURS]),
        (["-p", "hi"], [*OURS, "-p", "hi"]),
        (["--model", "x"], ["--thinking", "off", "--model", "x"]),
        (["--models=a,b"], ["--thinking", "off", "--models=a,b"]),
        (["--provider", "slotstream"], ["--model", MODEL, "--thinking", "off", "--provider", "slotstream"]),
        (["--provider", "openai", "--model", "x"], ["--thinking", "off", "--provider", "openai", "--model", "x"]),
        (["--thinking", "low"], [*OURS[:4], "--thinking", "low"]),
        (["install", "x"], ["install", "x"]),
        (["auth"], ["auth"]),
        (["hello", "install"], [*OURS, "hello", "install"]),
    ],
)
def test_the_model_is_named_unless_the_user_names_one(given: list[str], expected: list[str]) -> None:
    assert plan(*given).arguments == tuple(expected)


@pytest.mark.parametrize("given", [["--provider", "openai"], ["--provider=openai", "-p", "x"]])
def test_another_provider_without_a_model_is_refused(given: list[str]) -> None:
    with pytest.raises(AgentRefused, match="only together with `--model`"):
        PI.check(situation(*given, files={FILE: None}))


def test_a_new_file_describes_the_model_completely() -> None:
    (write,) = plan().files
    assert write.path == FILE
    provider = json.loads(write.text)["providers"]["slotstream"]
    assert provider["baseUrl"] == "http://127.0.0.1:11434/v1"
    assert (provider["api"], provider["apiKey"]) == ("openai-completions", "slotstream-local")
    assert provider["compat"] == {"supportsStore": False, "supportsStrictMode": False}
    (model,) = provider["models"]
    assert (model["id"], model["name"]) == (MODEL, "Qwen3.8-Flash-Next (Slotstream)")
    assert (model["contextWindow"], model["maxTokens"]) == (65_536, 8_192)
    assert model["input"] == ["text", "image"]
    assert model["thinkingLevelMap"] == {"minimal": None, "xhigh": None, "max": None}
    assert set(model["cost"].values()) == {0}
    assert json.loads(plan(vision=False).files[0].text)["providers"]["slotstream"]["models"][0]["input"] == ["text"]


OWN = """{
  "providers": {
    "mine": {"baseUrl": "http://x", "apiKey": "sk-1", "models": [{"id": "m", "cost": {"input": 1.50, "output": 2e0}}]},
    "slotstream": {
      "models": [
        {"maxTokens": 1, "id": "other"},
        {"id": "qwen3.8-flash-next:4bit", "name": "my name", "maxTokens": 7, "contextWindow": 9}
      ],
      "apiKey": "my-own",
      "baseUrl": "http://127.0.0.1:1/v1"
    }
  },
  "z": 1.0
}
"""


def test_everything_else_in_the_file_stays_as_written() -> None:
    (write,) = plan(text=OWN).files
    expected = (
        OWN.replace('"maxTokens": 7, "contextWindow": 9', '"maxTokens": 8192, "contextWindow": 65536')
        .replace("http://127.0.0.1:1/v1", "http://127.0.0.1:11434/v1")
        .replace(
            '11434/v1"\n',
            '11434/v1",\n      "api": "openai-completions",\n      "compat": {\n        "supportsStore": false,\n'
            '        "supportsStrictMode": false\n      }\n',
        )
    )
    assert write.text == expected
    assert "mine" not in write.shown
    assert "sk-1" not in write.shown


def test_a_file_that_is_right_already_is_not_written() -> None:
    (write,) = plan(text=OWN).files
    assert plan(text=write.text).files == ()


@pytest.mark.parametrize(("before", "after"), [("slotstream-local", "k3y"), ("my-own", "my-own")])
def test_the_servers_key_replaces_our_placeholder_and_no_key_of_the_users(before: str, after: str) -> None:
    text = json.dumps({"providers": {"slotstream": {"apiKey": before}}})
    (write,) = plan(text=text, token="k3y").files
    assert json.loads(write.text)["providers"]["slotstream"]["apiKey"] == after
    assert after not in write.shown


def test_a_provider_gets_the_model_beside_its_others() -> None:
    (write,) = plan(text='{"providers": {"slotstream": {"models": [{"id": "other"}]}}}').files
    models = json.loads(write.text)["providers"]["slotstream"]["models"]
    assert [model["id"] for model in models] == ["other", MODEL]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("// mine\n{}", "not plain JSON at line 1"),
        ("", "not plain JSON"),
        ("[]", "the document is not an object"),
        ('{"providers": []}', "providers is not an object"),
        ('{"providers": {"slotstream": 1}}', r"providers\.slotstream is not an object"),
    ],
)
def test_a_file_that_cannot_be_edited_in_place_is_refused(text: str, words: str) -> None:
    with pytest.raises(AgentRefused, match=words) as refused:
        PI.check(situation(files={FILE: text}))
    assert str(FILE) in str(refused.value)


@pytest.mark.parametrize(
    "text", ['{"providers": {"slotstream": {"models": {}}}}', '{"providers": {"slotstream": {"compat": 1}}}']
)
def test_an_entry_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(AgentRefused, match="cannot be edited in place"):
        plan(text=text)


def test_pi_may_keep_its_files_elsewhere() -> None:
    asked = situation(environment={"PI_CODING_AGENT_DIR": "~/dotfiles/pi"})
    assert PI.reads(asked) == (HOME / "dotfiles" / "pi" / "models.json",)
