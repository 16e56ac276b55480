"""The site: it builds without a warning, holds what the sources hold, and asks the network for nothing."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.cli.entry_point import command_group
from storage.columns.column import Column
from storage.columns.numeric import Ordered
from storage.columns.types import TYPES
from tasks.planning.configuration import TrainingConfig
from tests.support.browser import chromium, needs_browser
from tests.support.serving import wait_for

REPOSITORY = Path(__file__).resolve().parents[1]
_FETCHED = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)="?((?:https?:)?//[^" >]+)')


@pytest.fixture(scope="module", params=["pages", pytest.param("docstrings", marks=pytest.mark.nightly)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a strict build, in which a broken link or anchor is an error.

    By day docstrings are not read, which takes most of the time: where they would stand, their modules are named.
    """
    folder = tmp_path_factory.mktemp("site")
    config = REPOSITORY / "mkdocs.yml"
    if request.param == "pages":
        hook = REPOSITORY / "scripts" / "site_pages.py"
        lines = [f"INHERIT: {config}", f"docs_dir: {REPOSITORY / 'docs'}", f"hooks: [{hook}]"]
        lines.append("plugins: [search, offline]")
        config = tmp_path_factory.mktemp("config") / "mkdocs.yml"
        config.write_text("\n".join(lines))
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_pages_fetch_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert {page.name: found for page in pages if (found := _FETCHED.findall(page.read_text("utf-8")))} == {}
    assert _FETCHED.findall('<script src="https://cdn.example/x.js">'), "the pattern sees what is fetched"
    assert [page for page in site.rglob("*.css") if re.search(r"url\(.?https?:", page.read_text("utf-8"))] == []


def test_every_command_key_and_name_is_in_the_reference(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text("utf-8")
    for name in command_group([]).commands:
        assert f"unitball {name}" in commands
    settings = (site / "reference/settings.html").read_text("utf-8")
    for name in TrainingConfig.model_fields:
        assert f"<code>{name}</code>" in settings
    schema = (site / "reference/schema.html").read_text("utf-8")
    kinds: list[type[Column]] = [*TYPES.values(), Ordered]
    for kind in kinds:
        assert kind.__name__ in schema
    assert "PrivateClassifier" in (site / "reference/unitball.html").read_text("utf-8")
    assert "distributions" in (site / "reference/dpalgos.mechanisms.html").read_text("utf-8")


@pytest.mark.parametrize("site", [pytest.param("docstrings", marks=pytest.mark.nightly)], indirect=True)
def test_classes_of_modules_are_in_the_reference(site: Path) -> None:
    assert "RoundedGaussian" in (site / "reference/dpalgos.mechanisms.html").read_text("utf-8")


def test_a_short_word_of_code_breaks_nowhere(site: Path) -> None:
    """`--group-size` in a narrow column broke after its first two hyphens."""
    page = (site / "people-and-budgets.html").read_text("utf-8")
    assert '<code><span class="word">--group-size</span></code>' in page
    assert "white-space: nowrap" in next(
        rule for rule in (site / "assets/site.css").read_text("utf-8").splitlines() if ".word" in rule
    )
    assert "test_<wbr>" in (site / "parties-reference.html").read_text("utf-8"), "what is long breaks after a separator"


_RAW = re.compile(r"\n- |\n\d+\. |^#+ |^\||\| ?--|\[[^\]]*\]\(|`|\\(?:$|[<*_|])", re.M)


def raw_markdown(page: str) -> list[str]:
    """Return the texts of a page's paragraphs, items and cells in which Markdown is left."""
    body = re.sub(r"<(pre|script|code|math)\b.*?</\1>", "code", page, flags=re.S)
    texts = re.findall(r"<(?:p|li|td)\b[^>]*>(.*?)</(?:p|li|td|ul|ol)>", body, re.S)
    plain = [html.unescape(re.sub(r"<[^>]*>", "", text)).strip() for text in texts]
    return [text for text in plain if _RAW.search(text)]


def test_markdown_is_read_as_it_is_meant(site: Path) -> None:
    """A list without an empty line before it was one paragraph, and a command in an item a line with `\\` in it."""
    assert {str(page): raw for page in site.rglob("*.html") if (raw := raw_markdown(page.read_text("utf-8")))} == {}


@pytest.mark.browser
@needs_browser[-1]
def test_the_search_works_on_pages_opened_as_files(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile", width=1500) as browser:
        browser.get((site / "index.html").as_uri())
        box = browser.find_element("css selector", "input.md-search__input")
        box.click()
        box.send_keys("notebook")

        def found() -> list[str]:
            links = browser.find_elements("css selector", ".md-search-result__link")
            return [link.get_attribute("href").partition("?")[0] for link in links]

        wait_for("what is found", lambda: found())
        assert (site / "notebook.html").as_uri() in found()
