"""Pages of the site that are made from other sources, when it is built: a hook of MkDocs, named in mkdocs.yml."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from typer.core import TyperGroup, TyperOption

import dpalgos
import unitball
from deployments.cli.entry_point import command_group, import_all
from storage.columns.numeric import Ordered
from storage.columns.types import TYPES
from tasks.datasets.drafts import draft_schema
from tasks.datasets.request import IngestRequest
from tasks.datasets.schedules import Schedule
from tasks.experiments.specifications import SweepBlock, SweepSpec
from tasks.planning.configuration import SecureSettings, TrainingConfig

REPOSITORY = Path(__file__).resolve().parents[1]
_ROOTS = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"} | {
    "SECURITY.md": "security-policy.md"
}
_UNBROKEN = 32
"""Characters of code that fit a line of a narrow screen."""
_ARGUMENTS = (
    "tasks.datasets.horizons",
    "tasks.preparation.streams",
    "storage.ledger.database",
    "tasks.exports.verifying",
)
"""Modules outside ``dpalgos`` whose docstrings hold an argument that pages rest on."""
_PAGES_OF_FILES = {
    "deployments/cli/entry_point.py": "commands.md",
    "storage/columns/types.py": "schema.md",
    "tasks/planning/configuration.py": "settings.md",
    "unitball/__init__.py": "unitball.md",
}
"""Files of code, as pages link to them in a clone, whose page in the reference has its own name."""
_MODELS = (TrainingConfig, SecureSettings, IngestRequest, Schedule, SweepSpec, SweepBlock)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages without their own folder.

    Without the plug-in that reads docstrings, what it would render is named, so that links to it can be checked.
    """
    for place, text in _pages():
        content = text if "mkdocstrings" in config.plugins else re.sub(r"^::: (\S+)$", _named, text, flags=re.M)
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Lead links to notebooks, and to files outside ``docs/`` that a clone has, to the pages made of them."""
    text = re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", markdown)
    for name, place in _ROOTS.items():
        text = text.replace(f"](../{name}", f"]({place}")
    return re.sub(r"\]\(\.\./([\w/]+\.py)(?:#([\w.]+))?\)", _in_reference, text)


def _in_reference(found: re.Match[str]) -> str:
    """Return the link to the docstring of a file's module, or of a class or function in it."""
    path, name = found[1], found[2]
    if path in _PAGES_OF_FILES:
        return f"](reference/{_PAGES_OF_FILES[path]})"
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if module in _ARGUMENTS:
        return f"](reference/arguments.md#{module})"
    page = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    anchor = "" if page == module and name is None else "#" + ".".join(filter(None, (module, name)))
    return f"](reference/{page}.md{anchor})"


def on_page_content(html: str, **_: object) -> str:
    """Set formulas as MathML, which every browser draws by itself, and say where lines may break.

    Sphinx's roles are dropped from docstrings. A word of code breaks nowhere if it is short (`--group-size`), else
    after its separators; numbers stay with the sign between them.
    """
    for tag, opened, closed, display in (("span", r"\\\(", r"\\\)", "inline"), ("div", r"\\\[", r"\\\]", "block")):
        formula = rf'<{tag} class="arithmatex">{opened}(.*?){closed}</{tag}>'
        html = re.sub(formula, lambda found, display=display: convert(found[1], display=display), html, flags=re.S)  # type: ignore[misc]
    html = re.sub(r":(?:attr|class|data|func|math|meth|mod|obj):(<code>)~?", r"\1", html)
    html = re.sub(r"(?<=\d) ([→±]) (?=\d)", "\u00a0\\1\u00a0", html)
    # Code that stands alone on its lines comes after <pre> and an empty span.
    inline = r"(?<!<pre>)(?<!</span>)<code>([^<]+)</code>"
    return re.sub(inline, lambda found: f"<code>{re.sub(r'[^ ]+', _unbroken, found[1])}</code>", html)


def _named(found: re.Match[str]) -> str:
    """Return a name with the anchors that its docstrings would bring: its own, and those of a module's public names."""
    path = Path(*found[1].split(".")).with_suffix(".py")
    members = ast.parse((REPOSITORY / path).read_text("utf-8")).body if (REPOSITORY / path).is_file() else []
    names = [one.name for one in members if isinstance(one, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(one)]
    anchors = [found[1], *(f"{found[1]}.{name}" for name in names if not name.startswith("_"))]
    return "\n\n".join([found[0], "".join(f'<a id="{anchor}"></a>' for anchor in anchors)])


def _unbroken(word: re.Match[str]) -> str:
    if len(word[0]) > _UNBROKEN:
        return re.sub(r"(?<=[_/.,])(?=\w)", "<wbr>", word[0])
    return word[0] if word[0].isidentifier() else f'<span class="word">{word[0]}</span>'


def _pages() -> Iterator[tuple[str, str]]:
    for name, place in _ROOTS.items():
        text = (REPOSITORY / name).read_text("utf-8").replace("](docs/", "](").replace("](LICENSE)", "](#)")
        for other, there in _ROOTS.items():
            text = text.replace(f"]({other}", f"]({there}")
        yield place, text
    for notebook in sorted((REPOSITORY / "docs").glob("*.ipynb")):
        yield f"{notebook.stem}.md", _notebook(notebook)
    yield "reference/commands.md", _commands()
    yield "reference/settings.md", _settings()
    yield "reference/schema.md", _schema()
    yield "reference/unitball.md", _api("unitball", [f"unitball.{name}" for name in unitball.__all__])
    yield "reference/arguments.md", _arguments()
    packages: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(dpalgos.__path__, "dpalgos."):
        if "._" not in module.name and not module.ispkg:
            packages.setdefault(module.name.rpartition(".")[0], []).append(module.name)
    listed = [f"- [{name}]({name}.md)" for name in packages if name != "dpalgos"]
    yield "reference/dpalgos.md", "\n".join([_api("dpalgos", packages.pop("dpalgos")), "## Packages", "", *listed])
    for name, modules in packages.items():
        yield f"reference/{name}.md", _api(name, modules)


def _notebook(path: Path) -> str:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    return "\n\n".join(f"```python\n{text}\n```" if code else text for text, code in texts)


def _cell(text: object) -> str:
    # Code is shown as it is, but for the sign between cells.
    parts = re.split(r"(`[^`]*`)", str(text or "").replace("\n", " ").replace("|", "\\|"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_])", r"\\\1", part).replace("<", "&lt;") for part in parts
    )


def _commands() -> str:
    import_all()
    lines = ["# Commands", "", "Made from the commands' own help; every command takes `-h` and `--help`.", ""]
    for path, command in _walk(command_group([])):
        options = [option for option in command.params if isinstance(option, TyperOption) and not option.hidden]
        arguments = [(one.metavar or one.name).upper() for one in command.params if not isinstance(one, TyperOption)]
        lines += [f"## unitball {path}", "", command.help or "", ""]
        lines += ["    " + " ".join(["unitball", path, *arguments, "[OPTIONS]"]), ""]
        lines += [f"    {text}" for text in (command.epilog or "").removeprefix("Example: ").split("  ·  ")] + [""]
        lines += ["| option | what it says |", "| --- | --- |"] * bool(options)
        lines += [
            f"| {', '.join(f'`{flag}`' for flag in (*one.opts, *one.secondary_opts))} | {_cell(one.help)} |"
            for one in options
        ]
        lines.append("")
    return "\n".join(lines)


def _walk(group: TyperGroup, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _walk(command, f"{before}{name} ")
        else:
            yield before + name, command


def _settings() -> str:
    lines = ["# Settings", "", "The keys of configurations, as they stand in YAML files, in forms and in Python.", ""]
    for model in _MODELS:
        lines += [f"## {model.__name__}", "", inspect.getdoc(model) or "", ""]
        lines += ["| key | default | what it says |", "| --- | --- | --- |", *_keys(model), ""]
    return "\n".join(lines)


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        default = "needed" if field.is_required() else "–" if field.default in (None, (), "", {}) else field.default
        if isinstance(default, BaseModel):
            default = "below"
        yield f"| `{name}` | {_cell(getattr(default, 'value', default))} | {_cell(field.description)} |"


def _schema() -> str:
    with tempfile.TemporaryDirectory() as folder:
        drafted = Path(folder) / "clinic.yaml"
        draft_schema(REPOSITORY / "docs/examples/clinic.csv", drafted)
        text = drafted.read_text("utf-8").replace(folder, "").replace(f"{REPOSITORY}/", "")
    kinds = sorted(f"{one.__module__}.{one.__name__}" for one in (*TYPES.values(), Ordered))
    return _api(
        "Schema",
        ["storage.schema.Schema", *kinds],
        "Every key with its meaning stands in [the schema of a table](../schema.md). This is what "
        f"`unitball schema draft` writes for a file of six columns:\n\n```yaml\n{text}\n```\n",
    )


def _arguments() -> str:
    lines = ["# Arguments of storage and tasks", "", "Rendered from the docstrings of the code they are about.", ""]
    lines += [f"::: {name}\n    options:\n      members: false\n" for name in _ARGUMENTS]
    return "\n".join(lines)


def _api(title: str, names: list[str], text: str = "") -> str:
    return "\n\n".join(
        [f"# {title}", text or (importlib.import_module(title).__doc__ or ""), *(f"::: {n}" for n in names)]
    )
