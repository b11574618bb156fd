"""Write the generated pages under `docs/`, or with `--check` say which ones no longer match the code."""

import argparse
import pathlib
import sys

from tools.docs.api_pages import api_pages
from tools.docs.cli_reference import cli_reference
from tools.docs.plan_figure import plan_figure

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"docs/cli.md": cli_reference, "docs/figures/plan-sweep.svg": plan_figure, **api_pages()}


def write_or_check(*, check: bool) -> list[str]:
    """Return the names of pages that differ from the code; write them unless `check` is set."""
    stale = []
    for name, render in PAGES.items():
        path = ROOT / name
        text = render()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    return stale


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when a page is stale")
    arguments = parser.parse_args()
    stale = write_or_check(check=arguments.check)
    for name in stale:
        print(f"{name}: {'stale; run make docs' if arguments.check else 'written'}")
    return int(bool(stale) and arguments.check)


if __name__ == "__main__":
    sys.exit(_main())
