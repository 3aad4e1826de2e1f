"""Rename column `setting`: `variant` in cosine tables, `regime` in tables of training runs.

Run once, from the repository's root. The choice of variants is no longer part of a cosine table's identity.
"""

import json
from pathlib import Path

for csv in sorted(Path("results").glob("**/*.csv")):
    word = "variant" if csv.stem == "cosine" else "regime" if csv.stem.startswith(("convergence", "ablation")) else None
    if word is None:
        continue
    header, rest = csv.read_text().split("\n", 1)
    columns = header.split(",")
    assert "setting" in columns, csv
    csv.write_text(",".join(word if c == "setting" else c for c in columns) + "\n" + rest)
    beside = csv.with_suffix(".provenance.json")
    told = json.loads(beside.read_text())
    if csv.stem == "cosine":
        del told["config"]["settings"]
    told["migrated"] = f"2026-12-06: column setting renamed {word}"
    beside.write_text(json.dumps(told, indent=2) + "\n")
