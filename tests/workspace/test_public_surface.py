"""The public names of every package, as a list that changes only on purpose."""

import importlib
import subprocess
import sys

import pytest

SURFACE = {
    "slotstream_core": [
        "AGENT",
        "GREEDY",
        "ORDINARY",
        "THINKING",
        "CancelToken",
        "ChatMessage",
        "DraftCounts",
        "Engine",
        "ExpertTraffic",
        "Finished",
        "GenerationEvent",
        "PromptProgress",
        "SamplingParams",
        "SlotstreamError",
        "TextDelta",
        "ThinkingDelta",
        "Timings",
        "ToolCall",
        "Usage",
        "load",
    ],
    "slotstream_demo": ["package_directory"],
    "slotstream_serve": [
        "Limits",
        "ModelFacts",
        "ServeConfig",
        "ServeError",
        "create_app",
        "describe_checkpoint",
        "with_plan",
    ],
}


@pytest.mark.parametrize("package", SURFACE)
def test_the_public_names_are_these_and_all_exist(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == SURFACE[package]
    for name in SURFACE[package]:
        assert getattr(module, name) is not None
    assert set(SURFACE[package]) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import slotstream_core

    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = slotstream_core.nothing_like_it


def test_errors_and_text_do_not_load_mlx() -> None:
    code = (
        "import sys, slotstream_core.errors, slotstream_core.text.template, slotstream_core.text.tool_calls\n"
        "sys.exit('mlx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
