"""Principal components compared with diffprivlib's and OpenDP's: captured variance, angle of subspaces, seconds.

    python benchmarks/components.py rows ROWS                    # Unitball's environment; UNITBALL_DATA is set
    python benchmarks/components.py ours ROWS OURS.json
    OTHER/bin/python benchmarks/components.py theirs ROWS THEIRS.json [SET …]    # benchmarks/peers.txt, and polars
    python benchmarks/components.py table OURS.json THEIRS.json --output benchmarks/results/components.json

All see the same scaled rows in float64, and are told the same public numbers: the ranges of the columns and the radius
to which rows less their mean are clipped. All are under replace-one. Peers are pure epsilon; ours stands at delta =
10^-6. What is captured is measured on the exact covariance of the rows, which nothing clips, as a share of what its own
leading components capture; the angle is the largest between the two subspaces. Seconds are CPU seconds of all threads,
which do not depend on what else the machine does. Each of the peers' fits is a separate process, stopped after 600
CPU seconds; a further seed is not tried then. Fits that THEIRS.json has already are not repeated. A set may be named
with a number of its columns, as mnist:20.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from shared import head, keep_table, line, mnist

EPSILONS, DELTA, SEEDS = (0.1, 1.0, 3.0), 1e-6, 3
COMPONENTS = {"adult": 5, "cpu_act": 3, "mnist": 10}
# CPU seconds after which a peer's fit is stopped.
_LONGEST = 600

Found = dict[str, Any]


def rows(folder: str) -> None:
    """Write each set's scaled rows less the declared middle, the ends of their columns, and the radii."""
    from table_sets import load

    from storage.encoder import TableEncoder
    from unitball.bounds import Bounds

    for name in ("adult", "cpu_act"):
        table = load(name)
        encoder = TableEncoder(table.schema(), "clip")
        _write(folder, name, encoder.transform(table.frame(table.train)), encoder.declared.places)
    pixels, _ = mnist("train")
    bounds = Bounds.of((0, 255), 784)
    _write(folder, "mnist", bounds(pixels)[:, :-1], bounds.places)


def _write(folder: str, name: str, features: np.ndarray, columns: Any) -> None:
    from tasks.release.moments import geometry

    found = geometry(columns, features.shape[1])
    varies, origin = found["varies"], np.array(found["origin"])
    low, high = np.zeros(len(origin)), np.zeros(len(origin))
    for one in columns:
        places = slice(one.at, one.at + (one.values or 1))
        low[places], high[places] = (0.0 if one.values else one.low), one.high
    Path(folder).mkdir(parents=True, exist_ok=True)
    np.savez(
        Path(folder, f"{name}.npz"),
        x=(features - origin)[:, varies],
        low=(low - origin)[varies],
        high=(high - origin)[varies],
        reach=found["mean_radius"],
        radius=found["radius"],
    )


Fit = Callable[[Any, int, float, int], np.ndarray]


def ours(given: Any, components: int, epsilon: float, seed: int) -> np.ndarray:
    """Return directions (k, d) as ``unitball reduce`` makes them: the same algorithm, on rows in memory."""
    from dpalgos.accounting.costs import allocate
    from dpalgos.algorithms import fit
    from dpalgos.components import principal_components
    from dpalgos.evaluators.second_moments import SecondMoments
    from dpalgos.guarantees import GaussianMu, Setting
    from dpalgos.keystream import KeyedNoise, public_secret
    from dpalgos.rows import ArrayRows

    (budget,) = allocate([GaussianMu], [1.0], epsilon, DELTA).losses
    algorithm = SecondMoments(budget=budget, mean_radius=float(given["reach"]), radius=float(given["radius"]))
    features = given["x32"]
    setting = Setting(sizes=(len(features),), dimension=features.shape[1], classes=1)
    held = ArrayRows(features, np.zeros(len(features)))
    released = fit(algorithm, [held], setting, KeyedNoise(public_secret(seed), "benchmark"))
    return principal_components(algorithm.decoded(released.values, setting), components).directions.T


def diffprivlib(given: Any, components: int, epsilon: float, seed: int) -> np.ndarray:
    """Return directions (k, d) of diffprivlib's PCA."""
    from diffprivlib.models import PCA

    model = PCA(
        components,
        epsilon=epsilon,
        bounds=(given["low"], given["high"]),
        data_norm=float(given["radius"]),
        random_state=seed,
    )
    return model.fit(given["x"]).components_


def opendp(given: Any, components: int, epsilon: float, seed: int) -> np.ndarray:
    """Return directions (k, d) of OpenDP's PCA, whose noise has no seed."""
    import opendp.prelude as dp
    from opendp.extras.sklearn.decomposition import PCA

    dp.enable_features("contrib", "floating-point", "honest-but-curious")
    count, width = given["x"].shape
    model = PCA(
        epsilon=epsilon, row_norm=float(given["reach"]), n_samples=count, n_features=width, n_components=components
    )
    return np.asarray(model.fit(given["x"]).components_)


def _timed(fit: Fit, given: Any, components: int, epsilon: float, seed: int) -> tuple[np.ndarray, float]:
    """Return directions and CPU seconds."""
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        directions = fit(given, components, epsilon, seed)
    return directions, time.process_time() - started


def _stopped_late(fit: Fit, *arguments: Any) -> tuple[np.ndarray, float]:
    """Return the same of a separate process, which has so many CPU seconds.

    Raises
    ------
    TimeoutError
        If it needs more.
    RuntimeError
        With what a library raises.
    """
    near, far = multiprocessing.get_context("fork").Pipe(duplex=False)

    def work() -> None:
        # Native code looks at no signal; the kernel stops it all the same.
        resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST, _LONGEST))
        try:
            far.send(_timed(fit, *arguments))
        except Exception as error:  # whatever a peer raises
            far.send(repr(error)[:200])

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    far.close()
    try:
        found = near.recv()
    except EOFError:
        raise TimeoutError(f"not in {_LONGEST} CPU seconds") from None
    finally:
        child.join()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def run(folder: str, fits: dict[str, Fit], output: str, sets: list[str], *, limited: bool) -> None:
    """Run fits of each set and epsilon, and write what they capture."""
    kept = Path(output)
    found: list[Found] = json.loads(kept.read_text()) if kept.exists() else []
    for asked in sets:
        name, _, width = asked.partition(":")
        given = dict(np.load(Path(folder, f"{name}.npz")))
        if width:
            chosen = np.argsort(-given["x"].var(axis=0), kind="stable")[: int(width)]
            given |= {one: given[one][..., chosen] for one in ("x", "low", "high")}
            given["reach"] = np.linalg.norm(np.maximum(-given["low"], given["high"]))
        given["x32"] = given["x"].astype(np.float32)
        components = min(COMPONENTS[name], given["x"].shape[1])
        covariance = np.cov(given["x"], rowvar=False)
        values, vectors = np.linalg.eigh(covariance)
        best, exact = values[::-1][:components].sum(), vectors[:, ::-1][:, :components]
        for epsilon, (called, fit), seed in (
            (one, both, each) for one in EPSILONS for both in fits.items() for each in range(SEEDS)
        ):
            cell: Found = {"set": asked, "called": called, "epsilon": epsilon}
            before = [one for one in found if cell.items() <= one.items()]
            if any("error" in one or one["seed"] == seed for one in before):
                continue
            try:
                directions, seconds = (_stopped_late if limited else _timed)(fit, given, components, epsilon, seed)
            except (TimeoutError, RuntimeError) as error:
                found.append({**cell, "seed": seed, "error": str(error)})
            else:
                basis, _ = np.linalg.qr(directions.T)
                cosine = np.linalg.svd(exact.T @ basis, compute_uv=False).min()
                found.append(
                    {
                        **cell,
                        "seed": seed,
                        "captured": float(np.trace(basis.T @ covariance @ basis) / best),
                        "angle": float(np.degrees(np.arccos(np.clip(cosine, 0.0, 1.0)))),
                        "seconds": seconds,
                    }
                )
            print(found[-1], flush=True)
            kept.write_text(json.dumps(found))


def table(files: list[str], output: str | None) -> None:
    """Print the table, means over the seeds, and keep it."""
    found = [one for file in files for one in json.loads(Path(file).read_text())]
    names = list(dict.fromkeys(one["called"] for one in found))
    sets = list(dict.fromkeys([*COMPONENTS, *(one["set"] for one in found)]))
    head("set", "components", "epsilon", *(f"{name}: captured, angle, seconds" for name in names))
    for name, epsilon in ((name, epsilon) for name in sets for epsilon in EPSILONS):
        cells = []
        for called in names:
            own = [one for one in found if (one["set"], one["called"], one["epsilon"]) == (name, called, epsilon)]
            cells.append(_cell(own))
        line(name, COMPONENTS[name.partition(":")[0]], epsilon, *cells)
    if output:
        keep_table(Path(output), f"means of seeds 0 to {SEEDS - 1}, medians of CPU seconds; peers draw their own noise")


def _cell(own: list[Found]) -> str:
    stopped, own = [one for one in own if "error" in one], [one for one in own if "captured" in one]
    if not own:
        return (stopped[0]["error"].replace("CPU seconds", "s") if stopped else "not tried")[:60]
    captured, angle = (float(np.mean([one[what] for one in own])) for what in ("captured", "angle"))
    # The first fit waits for a compiler.
    seconds = float(np.median([one["seconds"] for one in own]))
    one_of = f" ({len(own)} of {SEEDS} seeds)" if stopped else ""
    return f"{captured:.3f}, {angle:.0f}°, {seconds:.2g} s{one_of}"


if __name__ == "__main__":
    command, *asked = sys.argv[1:]
    if command == "rows":
        rows(*asked)
    elif command == "ours":
        run(asked[0], {"unitball": ours}, asked[1], asked[2:] or list(COMPONENTS), limited=False)
    elif command == "theirs":
        # Before a clock starts: each fit is a fork of this process.
        for module in ("diffprivlib.models", "opendp.prelude", "opendp.extras.sklearn.decomposition"):
            importlib.import_module(module)
        peers: dict[str, Fit] = {"OpenDP": opendp, "diffprivlib": diffprivlib}
        run(asked[0], peers, asked[1], asked[2:] or list(COMPONENTS), limited=True)
    else:
        named = asked.index("--output") if "--output" in asked else len(asked)
        table(asked[:named], asked[named + 1] if named < len(asked) else None)
