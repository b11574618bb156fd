"""The documentation's Python runs as it stands."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/README.md"))
PAGES = ["README.md", "docs/library.md", *(page for page in PACKAGES if page != "packages/slotstream-cli/README.md")]


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, match in enumerate(re.finditer(r"```python\n(.*?)```", text, re.DOTALL)):
            found.append((f"{page}#{number}", match[1]))
    return found


@pytest.mark.parametrize(("name", "code"), blocks(), ids=[name for name, _ in blocks()])
def test_an_example_of_the_docs_runs(demo_root: pathlib.Path, name: str, code: str) -> None:
    environment = {**os.environ, "SLOTSTREAM_ROOT_DIR": str(demo_root)}
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_pages_hold_examples() -> None:
    assert {name.split("#")[0] for name, _ in blocks()} == set(PAGES)


@pytest.mark.parametrize(
    "page",
    sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")) + [ROOT / page for page in PACKAGES],
    ids=str,
)
def test_every_relative_link_leads_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PACKAGES)
def test_a_package_says_what_it_is_and_where_its_documents_are(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "```" in text
    assert "docs/" in text or "tools/" in text
    assert len(text.splitlines()) >= 10


def programs() -> list[tuple[str, str, list[str]]]:
    """Pages, the programs of this repository that they name, and the options they give them; the log is history."""
    found = []
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("*/*/README.md"),
    ]:
        if page.name in ("log.md", "CHANGELOG.md"):
            continue
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for match in re.finditer(r"python -m ((?:benchmarks|tools)[\w.]*)([^`|\n]*)", text):
            options = re.findall(r"--[a-z][a-z-]*", match[2])
            found.append((page.relative_to(ROOT).as_posix(), match[1], options))
    return found


@pytest.mark.parametrize(("page", "program", "options"), programs())
def test_a_program_that_a_page_names_is_there_and_has_the_options(page: str, program: str, options: list[str]) -> None:
    path = ROOT / program.replace(".", "/")
    source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py"
    shared = "".join(other.read_text(encoding="utf-8") for other in (ROOT / "benchmarks").glob("*.py"))
    text = source.read_text(encoding="utf-8") + shared
    assert [option for option in options if f'"{option}"' not in text] == []
