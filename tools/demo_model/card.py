"""Fill the model card's tables from the results of evaluate.py.

python -m tools.demo_model.card --results results.json --run run.json --commit HASH --out README.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

TEMPLATE_PATH = Path(__file__).with_name("MODEL_CARD.md")


def fill_card(template: str, results: dict[str, Any], *, seconds: float, commit: str) -> str:
    """Return the card with every @NAME@ replaced."""
    tools = [
        f"| {group.replace('_', ' ')} | {row['cases']} | {row['names']:.0%} | {row['exact']:.0%} |"
        for group, row in results["tools"]["table"].items()
    ]
    draft, experts = results["draft"], results["experts"]
    curve = experts["lru_hit_rate_by_pool_share"]
    formats = [f"| {name} | {row['weight_bytes']:,} | {row['mean']:.3f} |" for name, row in results["heldout"].items()]
    samples = [
        f"**{s['request']}** ({s['temperature']})\n\n> " + s["answer"].strip().replace("\n", "\n> ")
        for s in results["samples"]
    ]
    tops = experts["share_of_picks_of_the_busiest_quarter_by_layer"]
    values = {
        "TOOLS": "\n".join(tools),
        "DRAFT": (
            f"{draft['accepted_of_offered']:.0%} of the drafts are accepted "
            f"({draft['first_accepted']:.0%} of the first, {draft['second_accepted_after_first']:.0%} of the second "
            f"after an accepted first), {draft['tokens_a_pass']} tokens a pass."
        ),
        "POOLHEAD": " | ".join(f"{float(share):.0%}" for share in curve),
        "POOLRULE": "|".join("---" for _ in curve),
        "POOLHITS": " | ".join(f"{hits:.0%}" for hits in curve.values()),
        "TOPS": ", ".join(f"{top:.0%}" for top in tops),
        "QUANT": "\n".join(formats),
        "SAMPLES": "\n\n".join(samples),
        "SECONDS": f"{seconds:,.0f}",
        "COMMIT": commit,
    }
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill the model card.")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="run.json of the training run")
    parser.add_argument("--commit", required=True, help="the commit that evaluated the weights")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text(encoding="utf-8"))
    seconds = json.loads(arguments.run.read_text(encoding="utf-8"))["seconds"]
    template = TEMPLATE_PATH.read_text(encoding="utf-8")
    card = fill_card(template, results, seconds=seconds, commit=arguments.commit)
    arguments.out.write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
