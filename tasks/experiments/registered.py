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
    guarantees.SlackGaussian: "(s, μ): μ-GDP but for s of δ",
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
    return " and ".join(kinds or ["costs nothing"]) + f", {guarantee.numerics}"


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
        "proved": _statement(guarantee) if guarantee else "free: does not look at rows",
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
# Guarantees

This page answers: *what exactly is guaranteed by an algorithm, for whom, and under which assumptions?* Look for its
name: each section says what is **proved** about this code, under which trust models, what it assumes, and what its
paper **claims**. The proof is in the docstring that it links to. Where proof and claim differ the flaw is named, the
published algorithm runs on public data only, and its sound counterpart is named.

| part | holds |
| --- | --- |
| [What holds for every release](#what-holds-for-every-release) | what neighbours are, who sees what, what adds up |
| [Threat model](#threat-model) | who is protected against, and what is not covered |
| [Sensitivities](#sensitivities) | a table of all proved algorithms: how far one record moves what they release |
| [Systems](#systems) | what `--algorithm` names: a projection and a trainer for each trust model |
| [Projections](#projections), [trainers](#trainers), [evaluations](#evaluations) | their parts |

What is proved (μ-GDP, ε-DP, ρ-zCDP, (ε, δ)-DP) holds for any rows, and for one record (a row or, where a section says
so, a person). It holds under both relations unless one is named. Its value is the budget that a run gives the
algorithm, or, for noise by a paper's own formula, the value that the docstring derives. *Exact* and *idealised* are
about numerics. What depends on sizes is shown for three parties of 1,000 rows (one where a release is a party's own),
64 features and ten classes.

*This page is generated from the registry by `unitball algorithms --markdown`; a test compares the two.*

## What holds for every release

- **Relation.** Neighbouring data sets of n records differ in one of them; n and the parties' sizes are public (they are
  the aggregation weights). Under `replace-one` a record is replaced by any other, under `replace-special` by the *null
  record*, which is counted in n and contributes nothing (`dpalgos/rows.py`): then a signed sum moves by 1 instead of 2
  and a covariance or a count by 1 instead of √2. Null records occur in private data (rows a schema drops), so suprema
  under `replace-one` include them. An account keeps one relation; a release proved under `replace-special` enters an
  account of `replace-one` as a group of two (μ → 2μ, ε → 2ε, ρ → 4ρ, δ → (1 + e^ε) δ), never the other way.
  `add-remove-one` is refused: n shows in manifests, sizes of shards, grids and calibrations, and an audit told forty of
  forty neighbouring pairs apart by it. Releases that were charged under it are accounted as groups of two.
- **Unit.** The unit of an account, row or person, is fixed at opening. With the unit row, a record is one row, and an
  owner who declares k rows per person (`--group-size`) is charged for groups. With the unit person (a column of type
  `person`), a record is all rows of one person: n is the number of people and public, the number of rows of a person is
  not, and each of k rows has weight 1/k. Algorithms whose proof covers that say so below; the others refuse people.
- **Who may see what** depends on the trust model: [one table](trust.md) for simulated and for separate parties.
- **Composition.** A run's releases are one plan, known beforehand and composed tightly. A plan enters an account by a
  bound on its whole trade-off curve (least mu, least rho, or its tight epsilon at the delta it states), never by one
  (epsilon, delta) point; across plans only filters that hold under full adaptivity count
  (`dpalgos/accounting/composition.py` and `spending.py` have the proofs, [accounting](accounting.md) the numbers). What
  is guaranteed of an account is its cap; "spent" is a reading. Raising a cap opens a new filter with its own part of
  delta (`ClosedFilter` in `spending.py`). A party pays for what reads its rows; partitions of the same rows add up.
- **Exactly once.** A release is charged before noise exists and keyed by its identity; see [design](design.md).
- **Numerics.** `exact`: the noise is drawn in integers and the guarantee holds for the released bits, up to a total
  variation below 2⁻¹⁰⁰ a draw. `idealised`: floating-point noise, the guarantee holds in real arithmetic; on private
  data this needs the owner's consent (`--allow-idealised`).
- **Totality.** Behind the door nothing raises, stops or branches to another release because of what rows contain.
- **Where a row goes** is decided by its position and by public facts, never by what any row holds, so that neighbours
  differ in one row at one place. A null record keeps its place. Of people it is decided by the place in the register,
  and all rows of a person go where the person does. A test changes one row (equal to another, null, first,
  last, of another label) and finds every other one where it was (`tests/tasks/test_partitioning.py`); another finds
  that what a row adds to an integer sum depends on that row alone, seen through a released basis or model too
  (`tests/dpalgos/test_spreading.py`). Maps by products of real numbers (`random-fourier`, `public-whitening`, those
  learnt on public rows) may round a row by its place, which is its own, never by other rows.

| what is split | by what |
| --- | --- |
| parties with files of their own (`--partition own`) | the file that the row came in |
| simulated parties (`even`, `sized`) | its position among the rows that train, their number, a public seed |
| simulated parties by label (`by-label`, `dirichlet`) | the labels: refused on private rows |
| the held-out part of private rows | its position in its file, the party's name, a public seed |
| the held-out part of public rows | its position, the number of rows, a public seed |
| training and test files | the file |
| nights of files of their own | the file, and the version that the row came with |
| nights whose rows go to the parties in turn | the version, and place after older rows ([when](nights-reference.md)) |
| nights of people | the version that the person came with, and the place in the register ([when](nights.md#people)) |
| nights of `continual-class-means`, `continual-ftrl` | its position in its party, modulo the nights |
| the rows that `tuned` scores by | its position in its party, of people its person's, the share that is held out |
| batches of `dp-sgd` | a draw of its own from its holder's secret, for each step |
| blocks, files, workers' parts | its position, the number of features; sums are exact, so the cut changes none |

## Threat model

Protected against: an attacker who sees all releases, manifests, models, metrics, logs, the databases of MLflow and
Prefect, and all other rows; for `local` and `secagg` also the server and, for `secagg`, as many colluding parties as
declared.

Not covered:

- an attacker who can read a party's own store (rows, its secret) or the process's memory; on one machine the parties
  are simulated and only file modes keep them apart;
- time, without `--deadline`: durations of tasks on private rows are not published by Unitball, but an engine that runs
  them knows when they started and ended. With it each release (and each party's part of a secure sum) appears a public
  number of seconds after its rows could be read, and so does, once a run and after the charge, what is made of the rows
  before; longer work is refused and not tried again, and the declared probability of that (`--deadline-miss`, on any
  rows) is charged for both, as a delta of at least four times its size (`dpalgos/accounting/costs.py` has the proof).
  Not covered even then: ingesting rows, nights, comparisons with a champion, the use of processor, caches, memory and
  files before the deadline, how soon a sleeping process is woken, and a miss declared rarer than it is. Choose the
  deadline by runs on synthetic or public rows of the same sizes;
- a ledger file that is replaced together with its high-water mark by an attacker who can write both;
- people in several accounts whose owners declared the people disjoint;
- the rows on which your own encoder (`--features onnx:FILE`) was trained, and the rows of `--public-dataset`: such a
  run names both among its assumptions, and protects the private rows alone;
- what a model says about the population: differential privacy bounds what it says about one row, or one person;
- people with several rows, where the unit is a row: [rows or people](people-and-budgets.md#rows-or-people).
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

How far one record moves the statistic that the noise of each proved algorithm is calibrated to, at the algorithm's
default parameters (an ε of 1, or a μ of 1), for {parties} parties of {rows} rows with {dimension} features and
{classes} classes; solver tolerances are included, rounding to the grid is not. In brackets the share of it that the
algorithm's own pair of neighbours (`neighbouring_pair`) attains at zero weights. `tests/dpalgos/test_sensitivities.py`
searches for each supremum numerically. *Per person*: with any number of rows in the place of one, each weighed so that
all together move the statistic by no more (`row_weights` in `dpalgos/integer_sums.py` has the proof, the
section of each algorithm its argument; solvers' tolerances are those of as many rows as people may have). A column of
`type: person` in the schema makes people the records; without one, `--group-size` protects a person with several rows.
`tests/dpalgos/test_contract.py` holds people of up to 1,024 rows against it.
"""
_REFERENCE = guarantees.Setting(sizes=(200,) * 10, dimension=10, classes=3, trust=guarantees.Trust.CENTRAL)


def _cell(algorithm: Calibrated, relation: guarantees.Neighbours) -> str:
    setting = replace(_REFERENCE, neighbours=relation)
    return f"{algorithm.sensitivity(setting):.4g} ({attained(algorithm, setting):.2f})"


def _sensitivities() -> Iterator[str]:
    parties, rows = len(_REFERENCE.sizes), _REFERENCE.sizes[0]
    yield _TABLE.format(parties=parties, rows=rows, dimension=_REFERENCE.dimension, classes=_REFERENCE.classes)
    yield "| algorithm | statistic and norm | " + " | ".join(guarantees.RELATIONS) + " | of a person |"
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
