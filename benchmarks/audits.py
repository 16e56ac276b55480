"""What the audit says of everything that is registered and draws noise: the table of docs/audit.md.

    python benchmarks/audits.py [--only NAME,NAME] [--output benchmarks/results/audit-all.json]

Runs ``unitball audit --all --quick`` in a separate root and keeps a row for each report. With ``--only`` those names
alone are audited, with the options of ``--all --quick``; their rows, and no others, are replaced in the file that
there is, and rows of what is no longer registered are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shared import keep, made

FIELDS = {
    "kind": "kind",
    "name": "algorithm",
    "δ": "delta",
    "ε claimed": "claimed_epsilon",
    "ε proved": "proved_epsilon",
    "ε at least": "lower_bound",
    "ε at least, if Gaussian": "gaussian_bound",
    "μ at least": "lower_mu",
    "verdict": "verdict",
    "runs counted": "trials",
}
"""The field of a report that each column shows."""
_TO_TWO_DIGITS = [name for name in FIELDS if name[0] in "εμ"]
COLUMNS = [{"title": name, "digits": 2} if name in _TO_TWO_DIGITS else name for name in FIELDS]


def row(report: dict[str, Any]) -> list[Any]:
    """Return a report as a row of the table."""
    said = {name: report[field] for name, field in FIELDS.items()}
    said |= {name: None if said[name] is None else round(said[name], 2) for name in _TO_TWO_DIGITS}
    return list((said | {"name": f"`{said['name']}`", "δ": f"{said['δ']:.3g}"}).values())


def reports(*arguments: str) -> dict[str, Any]:
    """Return what ``unitball audit --quick`` says in JSON, in a separate root."""
    with tempfile.TemporaryDirectory() as root:
        command = [Path(sys.executable).with_name("unitball"), "audit", *arguments, "--quick", "--json"]
        alone = {**os.environ, "UNITBALL_ROOT": root}
        # Exit code 1 means a violation; a command that failed prints no JSON.
        found = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=alone).stdout
    return dict(json.loads(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "audit-all.json")
    given = parser.parse_args()
    from tasks.auditing.subjects import subjects

    order = [(one.kind, f"`{one.name}`") for one in subjects()]
    if not given.only:
        rows = {(one[0], one[1]): one for one in map(row, reports("--all")["audits"])}
        said = {"seeds": "one audit each, at 99 % confidence"}
    else:
        before = json.loads(given.output.read_text("utf-8"))
        rows = {(one[0], one[1]): one for one in before["rows"]}
        for kind, name in [one for one in order if one[1].strip("`") in given.only.split(",")]:
            rows[kind, name] = row(reports(name.strip("`"), "--kind", kind))
        said = {name: before[name] for name in ("command", "machine", "seeds")}
        said["made"] = f"{before['made']}; {given.only}: {made()}"
    found = {**said, "columns": COLUMNS, "rows": [rows[one] for one in order if one in rows]}
    keep(given.output, found, said["seeds"])


if __name__ == "__main__":
    main()
