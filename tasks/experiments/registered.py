"""Descriptions of all that is registered, in plain values, and the page of guarantees written from them."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from dpalgos import guarantees
from dpalgos.algorithms import Calibrated, Refused, admission, attained, is_sum_algorithm
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.sentences import sentence
from dpalgos.systems.system import Arrangement, Scope, System

PARTS = ("projections", "trainers", "evaluators")
_EXAMPLES: tuple[guarantees.Loss, ...] = (
    guarantees.GaussianMu(1.0),
    guarantees.PureEpsilon(1.0),
    guarantees.ZeroConcentrated(0.03),
    guarantees.ApproximateDP(1.0, 1e-5),
)
_WORDS: dict[type[guarantees.Loss], str] = {
    guarantees.PureEpsilon: "ε-DP",
    guarantees.GaussianMu: "μ-GDP",
    guarantees.ZeroConcentrated: "ρ-zCDP",
    guarantees.ApproximateDP: "(ε, δ)-DP",
    guarantees.PrivateSelection: "(ε, δ)-DP; all candidates μ-GDP",
    guarantees.SlackGaussian: "(s, μ): μ-GDP except with probability s (part of δ)",
}


def _built(kind: str, name: str) -> Any:
    """Return an algorithm at its defaults, with a budget of a type it takes where it takes any."""
    cls = lookup(kind, name)
    parameters: dict[str, Any] = {"components": 5} if hasattr(cls, "components") else {}
    budget = next((one for one in _EXAMPLES if type(one) in cls.budgets), None)
    return AlgorithmSpec(kind, name, parameters if budget is None else {**parameters, "budget": budget}).build()


def example_guarantee(kind: str, name: str, trust: str, *, joint: bool | None = None) -> guarantees.Guarantee:
    """Return what a part guarantees in an example setting: which kind of loss, under which assumptions.

    Parameters
    ----------
    joint : bool, optional
        Whether it is one release of three parties' rows; without, of one party's under ``local`` alone.
    """
    cls = lookup(kind, name)
    one = trust == guarantees.Trust.LOCAL if joint is None else not joint
    sizes = (1000,) if one else (1000, 1000, 1000)
    setting = guarantees.Setting(sizes=sizes, dimension=64, classes=10, neighbours=cls.relations[0], trust=trust)
    return cast(guarantees.Guarantee, _built(kind, name).guarantee(setting))


def _statement(guarantee: guarantees.Guarantee) -> str | None:
    if not guarantee.proved:
        return None
    kinds = dict.fromkeys(_WORDS[type(loss)] for loss in guarantee.losses)
    return " and ".join(kinds or ["free"]) + f", {guarantee.numerics}"


def _claimed(claim: guarantees.Claim | None) -> dict[str, str | None]:
    if claim is None:
        return {"claim": None, "theorem": None, "flaw": None}
    return {"claim": claim.statement, "theorem": claim.theorem, "flaw": claim.flaw and sentence(claim.flaw)}


def describe_part(kind: str, name: str) -> dict[str, Any]:
    """Return what there is to say of a projection, trainer or evaluator."""
    cls = lookup(kind, name)
    guarantee = example_guarantee(kind, name, cls.trusts[0]) if cls.reads_rows else None
    return {
        "name": name,
        "kind": kind,
        "source": cls.source,
        **_claimed(cls.claim),
        "proved": _statement(guarantee) if guarantee else "free: reads no rows",
        "reason": guarantee.reason if guarantee else None,
        "assumptions": list(map(sentence, guarantee.assumptions)) if guarantee else [],
        "trust": [str(trust) for trust in cls.trusts],
        "sums_only": is_sum_algorithm(cls),
        "people": ("refused: " if isinstance(admission(cls), Refused) else "as one record: ") + admission(cls),
        "sound_counterpart": cls.sound_counterpart,
    }


def _parts_of(arrangement: Arrangement) -> Iterator[AlgorithmSpec]:
    if arrangement.projection is not None and lookup("projections", arrangement.projection.name).reads_rows:
        yield arrangement.projection
    yield arrangement.trainer


_Parts = tuple[tuple[str, str], ...]


def _examples(system: System) -> Iterator[tuple[str, _Parts, list[guarantees.Guarantee]]]:
    """Yield, for each trust model, a system's parts by kind and name, and what each guarantees."""
    for trust, arrangement in system.supported().items():
        parts = tuple((spec.kind, spec.name) for spec in _parts_of(arrangement))
        scopes = {"projections": arrangement.projection_scope, "trainers": arrangement.trainer_scope}
        examples = [example_guarantee(*part, trust, joint=scopes[part[0]] is Scope.JOINT) for part in parts]
        yield str(trust), parts, examples


def _together(examples: list[guarantees.Guarantee]) -> str | None:
    """Return what is proved of several releases, or None where one has no proof."""
    statements = dict.fromkeys(_statement(guarantee) for guarantee in examples)
    return None if None in statements else " and ".join(map(str, statements))


def describe_system(name: str) -> dict[str, Any]:
    """Return what there is to say of a system; it is proved if all its parts are, under its first trust model.

    Where the trust models differ, what is proved is said of each.
    """
    system: System = lookup("systems", name)
    each = list(_examples(system))
    under: dict[str, list[str]] = {}
    for trust, _, examples in each:
        under.setdefault(_together(examples) or "none", []).append(trust)
    said = [f"{proved} ({', '.join(trusts)})" if len(under) > 1 else proved for proved, trusts in under.items()]
    return {
        "name": name,
        "kind": "systems",
        "source": system.source,
        "summary": system.summary,
        "paper": system.paper or None,
        **_claimed(system.claim),
        "proved": "; ".join(said) if _together(each[0][2]) else None,
        "reason": next((one.reason for one in each[0][2] if not one.proved), None),
        "assumptions": sorted(
            {sentence(code) for _, _, examples in each for one in examples for code in one.assumptions}
        ),
        "trust": [trust for trust, _, _ in each],
        "parts": {
            str(trust): [f"{spec.kind.removesuffix('s')} {spec.name}" for spec in _parts_of(arrangement)]
            for trust, arrangement in system.arrangements.items()
        },
        "sound_counterpart": system.sound_counterpart,
    }


def describe_all() -> list[dict[str, Any]]:
    """Return every system and part, systems first."""
    systems = [describe_system(name) for name in names("systems")]
    parts = [describe_part(kind, name) for kind in PARTS for name in names(kind)]
    combined: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": "aggregators",
            "source": str(getattr(lookup("aggregators", name), "source", "") or ""),
            **_claimed(None),
            "proved": "free: post-processing of releases",
            "reason": None,
            "assumptions": [],
            "trust": [],
            "sound_counterpart": None,
        }
        for name in names("aggregators")
    ]
    return systems + parts + combined


_PREFACE = """\
# Algorithms and guarantees

This page answers: *what exactly does an algorithm guarantee, for whom, and under which assumptions?* It first says what
holds for every release, then lists all algorithms. The page is made from the code by
`unitball algorithms --markdown`.

| I want to know | see |
| --- | --- |
| what an algorithm guarantees | its name under [systems](#systems) (names for `--algorithm`), \
[projections](#projections), [trainers](#trainers) or [evaluations](#evaluations) |
| against whom it protects, and what it does not cover | [threat model](#threat-model) |
| who sees what, with several parties | [trust models](trust.md) |
| which algorithms protect people with several rows | [sensitivities](#sensitivities), last column |
| how charges add up | [accounting](accounting.md) |

## How to read an entry

| line | meaning |
| --- | --- |
| **Proved**, or **Under** with trust models | what is proved about this code. It holds for all data, for one record, \
and under both [neighbouring relations](#what-is-protected) unless the entry names one |
| μ-GDP, ε-DP, ρ-zCDP, (ε, δ)-DP | the kind of guarantee ([glossary](glossary.md)). Its value is the budget that a \
run gives the algorithm. For noise by a paper's formula, the docstring derives the value |
| exact | noise is drawn in integers. The guarantee holds for the released bits, up to a total variation below 2⁻¹⁰⁰ \
per draw |
| idealised | noise is in floating point, and the guarantee holds in real arithmetic. On private rows it needs \
`--allow-idealised` |
| **People** | whether all rows of a person count as one record, and why. k is the number of the person's rows, R the \
bound on the norm of a row, a the weight of a class count, U the units that one record adds to a count |
| **Assumes** | on what the proof relies in addition |
| **Claim**, **Flaw** | what the paper states, and why its proof fails. Such an algorithm runs on public rows only |
| **Sound counterpart** | the corrected algorithm |

Guarantees that depend on sizes are shown for three parties of 1,000 rows (one party, if each party has a release of its
own), 64 features and ten classes. Each proof is in the docstring that the entry links to.

## What holds for every release

### What is protected

| term | meaning |
| --- | --- |
| record | what is protected: a row, or a person with all rows (a column of type `person`). The unit is fixed when \
the account is opened |
| several rows per person, unit row | the owner declares the largest number k (`--group-size`), and the account \
counts the loss of k rows |
| several rows per person, unit person | the number of people is public, the number of rows of a person is not; each \
of k rows has weight 1/k. Algorithms without a proof for people refuse them |
| neighbouring data sets | they differ in one record. The number of records n and the parties' sizes are public |
| `replace-one` | the record is replaced by any other record |
| `replace-special` | the record is replaced by the null record, which counts in n and contributes nothing. A sum \
then changes by 1 instead of 2, a covariance or a count by 1 instead of √2 |
| `add-remove-one` | refused, because n is visible in manifests and sizes |
| account | keeps one relation. A release proved under `replace-special` counts in an account of `replace-one` as a \
group of two (μ → 2μ, ε → 2ε, ρ → 4ρ, δ → (1 + e^ε) δ). The reverse is refused |

### What a run costs

- All releases of a run form one plan. Unitball knows the plan before the run and composes it tightly.
- An account counts a plan by a bound on its whole trade-off curve: the least μ, the least ρ, or its ε at the δ that it
  states. Over several plans it uses only filters that hold if each run is chosen after seeing the earlier ones.
- The account guarantees its cap. The spent ε is informational.
- Each release is charged once, before its noise is drawn. The same release is not charged again.
- A raised cap opens a new filter with its own part of δ.
- Each party's account is charged for the releases that read its rows. Several partitions of the same rows add up.

### Which facts decide where a row goes

Its position and public facts decide, never the content of a row. So neighbours differ in one row at one place. For
people the position in the register of people decides, and all rows of a person stay together. A null record keeps its
position. No content of rows stops a run, raises an error or selects another release.

| what is divided | decided by |
| --- | --- |
| parties with their own files (`--partition own`), training and test files | the file |
| simulated parties (`even`, `sized`) | the position among the training rows, their number, a public seed |
| simulated parties by label (`by-label`, `dirichlet`) | the labels: refused on private rows |
| held-out rows of a private set | the position in the file, the party's name, a public seed |
| held-out rows of a public set | the position, the number of rows, a public seed |
| nights, parties with their own files | the file, and the version with which the row came |
| nights, rows dealt to the parties in turn | the version, and the position after older rows \
([when](nights-reference.md)) |
| nights of people | the version with which the person came, and the position in the register \
([when](nights.md#people)) |
| nights of `continual-class-means`, `continual-ftrl` | the position in the party, modulo the number of nights |
| rows that score the candidates of `tuned` | the position in the party (for people: the person's), and the share |
| batches of `dp-sgd` | a draw from the party's secret, for each step |
| blocks and workers' parts | the position, the number of features. Sums are exact, so the division changes no sum |

Maps by products of real numbers (`random-fourier`, `public-whitening`, maps learnt on public rows) may round a row by
its own position, never by other rows.

## Threat model

Unitball protects each record against an attacker who sees all releases, manifests, models, metrics, logs, the databases
of MLflow and Prefect, and all other rows. Under `local` and `secagg` it also protects against the server, and under
`secagg` against as many colluding parties as declared.

| not covered | what to do |
| --- | --- |
| an attacker who reads a party's own files or the memory of its process. Simulated parties are on one machine and \
separated by file modes only | [security](security.md#files) |
| durations without `--deadline`: Prefect knows when tasks on private rows started and ended | `--deadline` |
| with `--deadline`: ingestion, nights, comparisons with a champion; the use of processor, caches, memory and files \
before the deadline; how soon a sleeping process wakes; a miss that is more frequent than `--deadline-miss` states | \
choose the deadline by runs on synthetic or public rows of the same sizes ([time](security.md#time)) |
| a ledger that is replaced together with its high-water mark, by an attacker who can write both | keep the mark \
elsewhere (`UNITBALL_LEDGER_MARK`) |
| a person in several accounts whose owners declared the people disjoint | one account per population |
| rows on which your own encoder was trained (`--features onnx:FILE`), and rows of `--public-dataset` | the run names \
both among its assumptions |
| what a model says about the population | – : differential privacy bounds what it says about one record |
| a person with several rows, if the unit is a row | [rows or people](people-and-budgets.md#rows-or-people) |
"""


def _system_lines(name: str) -> Iterator[str]:
    """Yield a system's section: of what it is made, and what is proved, under each trust model.

    Where nothing is proved the flaw is that of the whole; the reasons of its parts stand in their own sections.
    """
    system: System = lookup("systems", name)
    entry = describe_system(name)
    yield from _heading(entry, system.summary)
    chosen = ", for example" if system.choose is not None else ""
    for (parts, proved), trusts in _under_each_trust(system).items():
        links = " and ".join(f"[{part}](#{_anchor(kind, part)})" for kind, part in parts)
        yield f"- **Under {', '.join(trusts)}:** {proved or 'nothing proved'} ({links}{chosen})"
    yield from _facts(entry)


def _under_each_trust(system: System) -> dict[tuple[_Parts, str], list[str]]:
    """Return the trust models under which a system is made of the same parts, with the same proof and assumptions."""
    found: dict[tuple[_Parts, str], list[str]] = {}
    for trust, parts, examples in _examples(system):
        proved = _together(examples) or ""
        assumed = dict.fromkeys(sentence(code) for guarantee in examples for code in guarantee.assumptions)
        proved += f", assuming {'; '.join(assumed)}" if proved and assumed else ""
        found.setdefault((parts, proved), []).append(trust)
    return found


def _part_lines(kind: str, name: str) -> Iterator[str]:
    """Yield a part's section: what is proved, where the proof stands, what it assumes, what its paper claims."""
    cls, entry = lookup(kind, name), describe_part(kind, name)
    yield from (f'<a id="{_anchor(kind, name)}"></a>', "")
    yield from _heading(entry, (inspect.getdoc(cls) or "").split("\n\n")[0])
    file = cls.__module__.replace(".", "/")
    where = f"[`{cls.__qualname__}`](../{file}.py#{cls.__qualname__})"
    if not cls.reads_rows:
        yield from (f"- **Proved:** {entry['proved']}; see {where}", "")
        return
    yield f"- **Proved:** {entry['proved'] or 'nothing'}; see {where}"
    if len(cls.relations) < len(guarantees.RELATIONS):
        yield f"- **Only under** {', '.join(f'`{one}`' for one in cls.relations)}"
    yield f"- **Trust:** {', '.join(entry['trust'])}"
    yield from _facts(entry)


def _heading(entry: dict[str, Any], summary: str) -> Iterator[str]:
    yield from (f"### {entry['name']}", "", f"{' '.join(summary.split())} *Source: {entry['source']}.*", "")


def _facts(entry: dict[str, Any]) -> Iterator[str]:
    """Yield what else there is to say of an entry; a flaw that is the reason why nothing is proved is said once."""
    in_line = entry["kind"] == "systems"
    facts = [
        ("People", entry.get("people") if entry["proved"] else None),
        ("Assumes", None if in_line else "; ".join(entry["assumptions"])),
        ("Claim", entry["claim"] and f"{entry['claim']} ({entry['theorem']})"),
        ("Flaw", entry["flaw"]),
        ("Why nothing is proved", None if entry["flaw"] and in_line else entry["reason"]),
        ("Sound counterpart", entry["sound_counterpart"] and f"`{entry['sound_counterpart']}`"),
    ]
    said = {text: name for name, text in reversed(facts) if text}
    yield from (f"- **{name}:** {text}" for name, text in facts if text and said[text] == name)
    yield ""


def _anchor(kind: str, name: str) -> str:
    """Return the anchor of a part: a system may have its name."""
    return f"{kind}-{name}"


_TABLE = """\
## Sensitivities

The noise of an algorithm is calibrated to its sensitivity: how far one record can change the summed statistic. The
table shows it for all proved algorithms at their default parameters (ε = 1 or μ = 1), for {parties} parties of {rows}
rows, {dimension} features and {classes} classes. It includes the tolerances of solvers, and excludes rounding to the
grid. The number in brackets is the share of the sensitivity that the algorithm's own pair of neighbours reaches at
zero weights.

*Per person*: "the same" means that any number of rows of one person, weighted together as one record, change the
statistic no further. "Refused" means that the algorithm refuses tables with a column of `type: person`.
"""
_REFERENCE = guarantees.Setting(sizes=(200,) * 10, dimension=10, classes=3, trust=guarantees.Trust.CENTRAL)


def _cell(algorithm: Calibrated, relation: guarantees.Neighbours) -> str:
    setting = replace(_REFERENCE, neighbours=relation)
    return f"{algorithm.sensitivity(setting):.4g} ({attained(algorithm, setting):.2f})"


def _sensitivities() -> Iterator[str]:
    parties, rows = len(_REFERENCE.sizes), _REFERENCE.sizes[0]
    yield _TABLE.format(parties=parties, rows=rows, dimension=_REFERENCE.dimension, classes=_REFERENCE.classes)
    yield "| algorithm | statistic and norm | " + " | ".join(guarantees.RELATIONS) + " | per person |"
    yield "| --- " * (3 + len(guarantees.RELATIONS)) + "|"
    for kind in PARTS:
        for name in names(kind):
            algorithm, derived = _built(kind, name), lookup(kind, name).relations
            setting = replace(_REFERENCE, neighbours=derived[0])
            if not isinstance(algorithm, Calibrated) or not _built(kind, name).guarantee(setting).proved:
                continue
            cells = [_cell(algorithm, each) if each in derived else "refused" for each in guarantees.RELATIONS]
            cells.append("refused" if isinstance(admission(lookup(kind, name)), Refused) else "the same")
            yield f"| `{name}` | {algorithm.measured} | " + " | ".join(cells) + " |"
    yield ""


def render() -> str:
    """Return the whole page as Markdown."""
    lines = [_PREFACE, *_sensitivities(), "## Systems", ""]
    for name in names("systems"):
        lines += _system_lines(name)
    titles = {
        "projections": "Projections",
        "trainers": "Trainers",
        "evaluators": "Evaluations",
    }
    for kind in PARTS:
        lines += [f"## {titles[kind]}", ""]
        for name in names(kind):
            lines += _part_lines(kind, name)
    return "\n".join(lines).rstrip() + "\n"
