"""One self-contained page an experiment: readable on a phone and on paper, with no link to anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2 import Environment

from tasks.experiments.figures import Drawing, wording
from tasks.experiments.points import Row
from tasks.experiments.records import Experiment

__all__ = ["page"]

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ e.name }}: {{ e.title }}</title>
<style>
:root { color-scheme: light; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --good: #00614a; --bad: #9c3d00; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
p, ul, figure { margin: .5rem 0; }
ul { padding-left: 1.2rem; }
.soft { color: var(--soft); }
figure svg { width: 100%; height: auto; max-height: 44rem; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; padding: .3rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { background: #f4f6f8; white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; }
.holds { color: var(--good); font-weight: 600; white-space: nowrap; }
.fails { color: var(--bad); font-weight: 600; white-space: nowrap; }
code, pre { font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: #f4f6f8; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 4px; }
.note { border-left: 4px solid var(--bad); padding: .2rem .8rem; background: #fff7f0; }
@media (max-width: 40rem) {
  th, .holds, .fails { white-space: normal; } th, td { padding: .25rem .3rem; } table { font-size: .75rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; } figure, tr { break-inside: avoid; } .wide { overflow: visible; }
  table { font-size: 7.5pt; } th { white-space: normal; } pre, th, .note { print-color-adjust: exact; }
}
</style>
</head>
<body>
<p class="soft">{{ [e.paper, e.figure, "scale: " ~ e.scale] | select | join(" · ") }}</p>
<h1>{{ e.title or e.name }}</h1>
{% if e.question %}<p>{{ e.question }}</p>{% endif %}
{% if e.missing %}<div class="note"><p><strong>Not reproduced in full.</strong></p>
<ul>{% for line in e.missing %}<li>{{ line }}</li>{% endfor %}</ul></div>{% endif %}
{% if figure %}<h2>Figure</h2>
<figure role="img" aria-label="{{ e.title }}">{{ figure | safe }}
<figcaption class="soft">Solid lines, filled markers and bars: proved. Dashed, open or hatched, with ✗: no proof.
Dotted black or white: no privacy. Bands and whiskers: smallest to largest over seeds.</figcaption></figure>{% endif %}
{% if e.verdicts %}<h2>Verdict</h2><div class="wide"><table>
<tr><th>what the paper says</th><th>verdict</th><th>measured</th><th>wanted</th></tr>
{% for v in e.verdicts %}<tr><td>{{ v.says }}</td>
<td class="{{ 'holds' if v.holds else 'fails' }}">{{ {true: "✓ ", false: "✗ ", none: ""}[v.holds] }}
{{- v.word }}</td>
<td class="number">{{ "–" if v.measured is none else "%.4g" | format(v.measured) }}</td>
<td class="number">{{ v.wanted }}</td></tr>
{% endfor %}</table></div>{% endif %}
{% if e.paper_says %}<h2>What the paper says</h2><ul>
{% for line in e.paper_says %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
{% if e.differs %}<h2>Where it differs, and why</h2><ul>
{% for line in e.differs %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
{% if e.compared %}<h2>Numbers printed in the paper</h2><div class="wide"><table>
<tr><th>where</th><th>what</th><th>paper</th><th>here</th><th>here / paper</th></tr>
{% for c in e.compared %}<tr><td>{{ where(c.where) }}</td><td>{{ wording(c.metric) }}</td>
<td class="number">{{ number(c.paper) }}</td>
<td class="number">{{ number(c.measured) }}</td>
<td class="number">{{ number(c.measured / c.paper) if c.paper and c.measured is not none else "–" }}</td></tr>
{% endfor %}</table></div>{% endif %}
<h2>Setting</h2><div class="wide"><table>
{% for name, value in e.setting.items() %}<tr><th>{{ wording(name) }}</th><td>{{ value }}</td></tr>{% endfor %}
</table></div>
{% for table in e.tables %}<h2>{{ table.title or "Measured" }}</h2><div class="wide"><table>
<tr>{% for cell in table.head %}<th>{{ wording(cell) }}</th>{% endfor %}</tr>
{% for line in table.body %}<tr>{% for cell in line %}<td{% if is_number(cell) %} class="number"{% endif %}>
{{- cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>{% endfor %}
{% if guarantees %}<h2>Guarantees</h2><div class="wide"><table>
<tr><th>series</th><th>trust</th><th>proved of this code</th><th>claimed by the paper</th></tr>
{% for g in guarantees %}<tr><td>{{ g.label }}</td><td>{{ g.trust }}</td>
<td>{{ g.proved | safe }}</td><td>{{ g.claim or "–" }}
{% if g.flaw %}<br><span class="fails">✗</span> {{ g.flaw }}{% endif %}
{% if g.sound %}<br>Sound counterpart: {{ g.sound }}.{% endif %}</td></tr>
{% endfor %}</table></div>{% endif %}
{% if e.failed %}<h2>Points that failed</h2><ul>
{% for line in e.failed %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
<h2>Run it again</h2><pre>{{ e.command }}</pre>
<p class="soft">{{ e.rows | length }} finished runs in {{ "%.0f" | format(e.seconds) }} s.
{% for name, value in e.versions.items() %}{{ name }} {{ value }}{{ ", " if not loop.last else "." }}{% endfor %}</p>
</body>
</html>
"""


def _inline(svg: bytes) -> str:
    """Return a picture without its XML prologue and its fixed size, so that it fits any width."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1
    )


def _guarantees(rows: Sequence[Row]) -> list[dict[str, str | None]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.label, row.trust), []).append(row)
    return [
        {
            "label": label,
            "trust": trust,
            "proved": _proved(mine),
            "claim": mine[0].claim,
            "flaw": mine[0].flaw,
            "sound": None if mine[0].status == "proved" else mine[0].sound_counterpart,
        }
        for (label, trust), mine in found.items()
    ]


def _proved(rows: Sequence[Row]) -> str:
    said = list(dict.fromkeys(row.proved for row in rows if row.proved))
    if not said:
        return '<span class="fails">none</span>'
    numerics = ", ".join(dict.fromkeys(row.numerics for row in rows if row.numerics))
    several = f"{said[0]} to {said[-1]}" if len(said) > 1 else said[0]
    return f'<span class="holds">{several}</span>, {numerics} numerics'


def _is_number(cell: str) -> bool:
    return bool(re.match(r"^-?[\d.]+(e[+-]?\d+)?( \(.*\))?$", cell))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _where(where: dict[str, object]) -> str:
    return ", ".join(str(value) if name in ("label", "dataset") else f"{name} {value}" for name, value in where.items())


def page(experiment: Experiment, drawing: Drawing | None) -> str:
    """Return the page of an experiment as one HTML file.

    Parameters
    ----------
    experiment : Experiment
    drawing : Drawing or None
        Put in as SVG.
    """
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.globals.update(wording=wording, is_number=_is_number, number=_number, where=_where)
    return environment.from_string(_TEMPLATE).render(
        e=experiment,
        figure=_inline(drawing.svg) if drawing is not None else None,
        guarantees=_guarantees(experiment.rows),
    )
