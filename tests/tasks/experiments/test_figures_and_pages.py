"""Figures tell proved from unproved without colour, alike on every machine; pages need nothing but themselves."""

from __future__ import annotations

import io
import math
import re
import statistics
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.experiments.comparisons import Verdict
from tasks.experiments.figures import _looks, _use_log_y, draw, draw_boundaries
from tasks.experiments.pages import page
from tasks.experiments.point_results import PointResult
from tasks.experiments.records import Drawing, Experiment, Table, _parquet
from tasks.experiments.specifications import Plot
from tests.support.nights import spanning


def a_row(label: str, status: Any, accuracy: float, **axes: Any) -> PointResult:
    return PointResult(
        label=label, dataset="digits", algorithm=label, trust="local", status=status, axes=axes,
        metrics={"accuracy": accuracy}, proved="(1, 1e-05)-DP" if status == "proved" else None,
        claim="(epsilon, delta)-DP" if status == "unproved" else None,
        flaw="<b>not</b> composed" if status == "unproved" else None,
    )  # fmt: skip


RESULTS = [
    a_row(label, status, accuracy + seed / 50, epsilon=epsilon, seeds=seed)
    for label, status, accuracy in (("fed", "proved", 0.6), ("fed-published", "unproved", 0.5))
    for epsilon in (0.1, 1.0)
    for seed in (0, 1)
] + [a_row("plain", "non-private", 0.9)]


def test_proved_and_unproved_differ_in_more_than_colour() -> None:
    looks = _looks({row.label: row.status for row in RESULTS})
    sound, published, plain = (looks[label]["line"] for label in ("fed", "fed-published", "plain"))
    assert sound["color"] == published["color"], "a published system and its counterpart share a colour"
    assert len({sound["linestyle"], published["linestyle"], plain["linestyle"]}) == 3
    assert published["markerfacecolor"] == "white"
    assert "markerfacecolor" not in sound
    assert looks["fed-published"]["bar"]["hatch"]
    assert not looks["fed"]["bar"]["hatch"]
    assert "not proved" in looks["fed-published"]["line"]["label"]
    assert looks["fed"]["line"]["label"] == "fed"


def contrast(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_colours_are_different_and_visible_on_white() -> None:
    looks = _looks({f"system-{number}": "proved" for number in range(8)})
    colours = [look["line"]["color"] for look in looks.values()]
    assert len(set(colours)) == 8
    assert min(contrast(colour) for colour in colours) > 2.0


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_a_figure_is_png_and_svg_and_the_same_every_time(kind: Any) -> None:
    plot = Plot(kind=kind, log_x=True)
    first, second = draw(plot, RESULTS, "title"), draw(plot, RESULTS, "title")
    assert first.png.startswith(b"\x89PNG")
    assert b"<svg" in first.svg
    assert first.svg == second.svg
    moved = [*RESULTS[:-1], a_row("plain", "non-private", 0.2)]
    assert draw(plot, moved, "title").svg != first.svg


def test_the_spread_over_seeds_is_drawn() -> None:
    still = [row.model_copy(update={"metrics": {"accuracy": 0.5}}) for row in RESULTS]
    spread = [
        row.model_copy(update={"metrics": {"accuracy": 0.5 + 0.2 * (float(str(row.axes.get("seeds", 0))) - 0.5)}})
        for row in RESULTS
    ]
    assert draw(Plot(), still, "t").svg != draw(Plot(), spread, "t").svg


def test_equal_values_have_no_spread() -> None:
    """The mean of three of these is below each of them."""
    value = 0.8444218515250481
    assert statistics.fmean([value] * 3) != value
    rows = [a_row("fed", "proved", value, seeds=seed) for seed in range(3)]
    assert draw(Plot(kind="bars"), rows, "t").png


def test_axes_of_lists_are_places_in_their_order() -> None:
    rows = [a_row("fed", "proved", 0.5, sizes=sizes) for sizes in ([50, 100], [100, 1000])]
    assert draw(Plot(kind="bars", x="sizes"), rows, "t").png.startswith(b"\x89PNG")
    assert draw(Plot(x="sizes"), rows, "t").png.startswith(b"\x89PNG")


LONG = ("non-private", "dpml-published", "dpdr-dpml-published", "fed-dpdr-dpml-published", "fed-dpdr-dpml (central)")
SIZES = ([50, 100, 500, 1000, 2000], [100, 500, 1000, 5000, 10000], [100, 1000, 5000, 8000, 10000])


@pytest.mark.parametrize(("kind", "panels"), spanning(["lines", "bars"], [1, 3]))
def test_nothing_is_cut_off_at_the_edges(kind: Any, panels: int) -> None:
    from matplotlib.image import imread

    rows = [
        a_row(label, "unproved", 0.5, sizes=sizes).model_copy(update={"dataset": f"set {panel}"})
        for label in LONG
        for sizes in SIZES
        for panel in range(panels)
    ]
    picture = imread(io.BytesIO(draw(Plot(kind=kind, x="sizes", log_y=["accuracy"]), rows, "A title").png))[:, :, :3]
    assert all((edge == 1.0).all() for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]))


def test_a_logarithmic_axis_has_plain_numbers_from_a_power_of_ten() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2], [1.8, 9.0])
    _use_log_y(axes, [1.8, 9.0, 0.0, math.nan])
    assert axes.get_ylim()[0] == 1.0
    figure.draw_without_rendering()
    assert {"2", "5"} <= {label.get_text() for label in axes.yaxis.get_ticklabels(minor=True)}


def test_each_models_line_is_drawn() -> None:
    rows, labels, grid = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([0, 1]), (np.arange(2.0), np.arange(2.0))

    def drawn(corner: float) -> bytes:
        scores = np.array([[-1.0, corner], [corner, 1.0]])
        return draw_boundaries(rows, labels, grid, [("a", "proved", scores)], "t").svg

    assert drawn(1.0) == drawn(1.0)
    assert drawn(1.0) != drawn(0.5)


def test_stored_results_are_one_table_whatever_kinds_the_values_of_an_axis_have() -> None:
    rows = [
        a_row("fed", "proved", 0.5, iterations=5, share="all", sizes=[50, 100]),
        a_row("plain", "non-private", 0.9, iterations=None, share=0.5),
    ]
    table = pq.read_table(io.BytesIO(_parquet(rows)))
    assert table["axis_iterations"].to_pylist() == [5, None]
    assert table["axis_share"].to_pylist() == ["all", "0.5"]
    assert table["axis_sizes"].to_pylist() == ["50, 100", None]
    assert table["metric_accuracy"].to_pylist() == [0.5, 0.9]


class _Links(HTMLParser):
    """Collects what a page would fetch and which tags are left open."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object"):
            self.fetched.append(tag)
        self.fetched += [f"{name}={value}" for name, value in attrs if name in ("src", "srcset", "data")]
        if tag not in ("meta", "br", "path", "use", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def a_page(drawing: Drawing | None = None, **changes: Any) -> str:
    experiment = Experiment(
        name="x-fig1",
        scale="quick",
        paper="x-2024",
        figure="Fig. 1",
        title="Accuracy & <budget>",
        question="How?",
        paper_says=["It is good."],
        differs=["It is not."],
        setting={"epsilon": "0.1, 1"},
        results=RESULTS,
        tables=[Table(head=["data set", "accuracy"], body=[["digits", "0.61 (0.6 – 0.62)"]])],
        verdicts=[
            Verdict(says="good", measured=0.1, wanted=">= 0.5", holds=False, points=2),
            Verdict(says="fine", measured=0.9, wanted=">= 0.5", holds=True, points=2),
            Verdict(says="seen", measured=None, wanted=">= 0.5", holds=None, points=0),
        ],
        command="unitball reproduce x-fig1",
        versions={"numpy": "2.4.6"},
    )
    return page(experiment.model_copy(update=changes), drawing)


def test_a_page_is_self_contained_and_says_everything() -> None:
    text = a_page(draw(Plot(), RESULTS, "title"))
    parser = _Links()
    parser.feed(text)
    assert parser.fetched == []
    assert parser.open == []
    assert not re.search(r"url\(\s*['\"]?(?!#)", text)
    for words in (
        "How?", "It is good.", "It is not.", "0.61 (0.6 – 0.62)", "does not hold", "not measured", "✓ holds",
        "numpy 2.4.6",
        "unitball reproduce x-fig1", "(1, 1e-05)-DP", "(epsilon, delta)-DP", "<svg",
    ):  # fmt: skip
        assert words in text, words


def test_a_page_of_private_rows_states_no_seconds() -> None:
    assert Experiment(name="x", scale="sweep", seconds=None).seconds is None
    assert "9 finished runs in 3 s." in a_page(seconds=3.0)
    assert "9 finished runs." in a_page(seconds=None)


def test_what_is_shown_is_escaped() -> None:
    text = a_page()
    assert "Accuracy &amp; &lt;budget&gt;" in text
    assert "<b>not</b>" not in text


def test_what_is_missing_stands_on_top() -> None:
    text = a_page(missing=["truex: system truex is not registered"])
    assert text.index("truex is not registered") < text.index("<h2>")


def test_the_pages_picture_fits_any_width() -> None:
    opening = re.search(r"<svg[^>]*>", a_page(draw(Plot(), RESULTS, "title")))
    assert opening
    assert "viewBox" in opening.group()
    assert not re.search(r'\s(width|height)="', opening.group())
