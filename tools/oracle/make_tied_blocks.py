"""Write tests/core/goldens/tied-blocks.json: which of many equal values PyTorch's CPU `topk` takes.

    ORACLE/bin/python -m tools.oracle.make_tied_blocks tests/core/goldens/tied-blocks.json

ORACLE is an environment with torch==2.13.0 and numpy.
"""

import argparse
import json
from pathlib import Path

import numpy as np

CASES = 120


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    records = []
    for case in range(CASES):
        length = int(generator.integers(1, 60)) if case % 4 else int(generator.integers(128, 260))
        count = int(generator.integers(1, length + 1)) if case % 4 else int(generator.integers(1, length // 64 + 1))
        scores = np.maximum(generator.integers(-6, 4, length), 0)
        chosen = torch.tensor(scores, dtype=torch.float32).topk(count, dim=0).indices.tolist()
        records.append({"scores": "".join(map(str, scores)), "count": count, "chosen": sorted(chosen)})
    arguments.path.write_text(json.dumps(records, separators=(",", ":")).replace("},", "},\n") + "\n")


if __name__ == "__main__":
    main()
