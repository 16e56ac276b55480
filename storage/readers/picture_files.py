"""Files that are images, below a folder or in a table, with each image's class and person."""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.cells import canonical_text, canonical_texts, column_name
from storage.errors import InputError
from storage.names import visible
from storage.pictures.declaration import ENDINGS
from storage.readers.delimited import sniffed_layout
from storage.readers.raw_tables import PARQUET, raw_rows
from storage.schema import Table
from storage.source import most_rows, reading, require_file

PATH, LABEL, PERSON = "path", "label", "person"
"""Columns of a table of images."""
TABLES = (".csv", ".csv.gz", ".csv.bz2", ".tsv", ".txt", *PARQUET)
"""Ends of the names of such tables."""
_PARTS = ("train", "test")
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class PictureFile:
    """An image that a set lists.

    Attributes
    ----------
    path : str
        Where it lies.
    name : str
        What its owner calls it: the path below the set's folder.
    below : bytes
        The path below the class folder, which says its place; that below the set's folder in a table.
    label : str or None
        The class as it is written.
    line : int
        Of a table; 0 in a folder.
    person : object
        The cell that names its person; None where there is none.
    link : bool
        Whether it is a link, which is refused.
    """

    path: str
    name: str
    below: bytes
    label: str | None
    line: int = 0
    person: object = None
    link: bool = False

    @property
    def shown(self) -> str:
        """The name for a message, with what a terminal would obey escaped."""
        name = visible(self.name)
        return f"line {self.line}, {name}" if self.line else name


def is_picture(name: str) -> bool:
    """Whether a file is an image, by the end of its name alone."""
    return name.lower().endswith(ENDINGS)


def is_table(path: Path) -> bool:
    """Whether a path is a table of images, by the end of its name."""
    return path.name.lower().endswith(TABLES)


# Of network drives, archives, recycle bins and file systems; what begins with a point is hidden as well.
_SYSTEM = frozenset(
    ("@eadir", "__macosx", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found")
)
_HIDDEN = "hidden or in system folders"


def is_hidden(name: str) -> bool:
    """Whether a file or a folder is its system's and not its owner's, by its name: thumbnails, notebooks' copies."""
    return name.startswith(".") or name.casefold() in _SYSTEM


class Found(NamedTuple):
    """An image below a folder, by its path there; a link is none, and to be refused."""

    name: str
    link: bool = False


def files_below(folder: Path, passed: Counter[str] | None = None) -> Iterator[Found]:
    """Yield the images below a folder in no order; links to folders, and those with an image's name, among them.

    Parameters
    ----------
    folder : Path
    passed : Counter, optional
        Counts the files that are passed over, by the ends of their names, or because they are hidden.
    """
    passed = Counter() if passed is None else passed
    waiting = [("", False)]
    while waiting:
        here, hidden = waiting.pop()
        with reading(folder / here), os.scandir(folder / here) as entries:
            for entry in entries:
                name = f"{here}/{entry.name}" if here else entry.name
                away = hidden or is_hidden(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((name, away))
                elif away:
                    passed[_HIDDEN] += 1
                elif is_picture(entry.name) or (entry.is_symlink() and entry.is_dir()):
                    yield Found(name, entry.is_symlink())
                else:
                    passed[_text(Path(entry.name).suffix.lower())] += 1


_MOST_ENDINGS = 8


def passed_over(place: str, passed: Counter[str]) -> str:
    """Return a sentence on the files that are passed over, for the owner's screen; empty where none is."""
    if not passed:
        return ""
    kinds = [f"{count:,} {ending or 'without an ending'}" for ending, count in passed.most_common(_MOST_ENDINGS)]
    more = len(passed) - len(kinds)
    kinds += [f"{more} more endings"] if more else []
    total = passed.total()
    return (
        f"{place}: {total:,} {'file is' if total == 1 else 'files are'} passed over ({', '.join(kinds)}); images end "
        f"in {', '.join(ENDINGS)}, and are neither hidden nor in a system's folder"
    )


def _text(path: object) -> str:
    """Return a path for a message, with what a terminal would obey escaped."""
    return visible(str(path))


def parts_of(folder: Path, classes: Sequence[str] | None) -> dict[str, Path]:
    """Return the folders of the parts: ``train`` and ``test`` where these are there, or the folder itself.

    A declared class may be called so; then the folders are classes.

    Raises
    ------
    InputError
        If there are folders next to ``train``, whose images would be left out.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder; name the folder of the class folders, or a table of {PATH}, {LABEL}"
        )
    if not (folder / "train").is_dir() or "train" in (classes or ()):
        return {"train": folder}
    parts = {part: folder / part for part in _PARTS if (folder / part).is_dir()}
    with reading(folder), os.scandir(folder) as entries:
        others = sorted(
            entry.name
            for entry in entries
            if entry.name not in parts
            and not is_hidden(entry.name)
            and (entry.is_dir(follow_symlinks=False) or entry.is_symlink() or is_picture(entry.name))
        )
    for path in parts.values():
        if path.is_symlink():
            raise InputError(f"{path} is a link; links are not followed: put the folder there")
    if others:
        raise InputError(
            f"{_text(folder)} has train/ and also {_text(others[0])}; move it into train/ or test/, or elsewhere. "
            "If train is a class, declare it with --classes"
        )
    return parts


def folder_files(folder: Path, passed: Counter[str]) -> list[PictureFile]:
    """Return the images of a folder of class folders, in the order of whole paths; labels are folders' names.

    ``passed`` counts the other files, by the ends of their names.
    """
    found = []
    for name, link in files_below(folder, passed):
        first, slash, rest = name.partition("/")
        # A picture beside the class folders is of no class.
        label, below = (canonical_text(first), rest) if slash else (None, name)
        found.append(PictureFile(str(folder / name), name, os.fsencode(below), label, link=link))
    return sorted(found, key=lambda file: os.fsencode(file.name))


def arranged(files: Sequence[PictureFile], earlier: Sequence[bytes], place: str) -> list[PictureFile]:
    """Return images in the order of their places (:class:`storage.pictures.places.Places`).

    Parameters
    ----------
    files : sequence of PictureFile
    earlier : sequence of bytes
        Paths below class folders of all earlier versions, in the order of their places.
    place : str
        For messages.

    Raises
    ------
    InputError
        If two have equal paths below their class folders: which comes first would depend on a class.
    """
    by_path: dict[bytes, PictureFile] = {}
    for file in files:
        if (other := by_path.setdefault(file.below, file)) is not file:
            raise InputError(
                f"{place}: {other.shown} and {file.shown} have the same path below their class folders, and this path "
                f"sets the order of a private set. Rename one, or give a table of {PATH}, {LABEL} (and {PERSON}, if "
                "people have several images), ordered by line"
            )
    held = [by_path.pop(path) for path in earlier if path in by_path]
    return held + [by_path[path] for path in sorted(by_path)]


def table_files(path: Path, person: str | None) -> tuple[str | None, dict[str, list[PictureFile]]]:
    """Return the images of a table of paths below its folder, labels and perhaps people, part by part, line by line.

    Where the folder has ``train/``, each path begins with ``train/`` or ``test/``.

    Parameters
    ----------
    path : Path
        CSV or Parquet.
    person : str or None
        The column that names people; by default :data:`PERSON`, where it is there.

    Returns
    -------
    str or None
        The column that names people.
    mapping of part to list of PictureFile

    Raises
    ------
    InputError
        If a column is missing, a path leads out of the folder, through a link or to no image, or stands there twice.
    """
    folder, seen, links = path.parent, dict[str, int](), dict[str, bool]()
    parts: dict[str, list[PictureFile]] = {part: [] for part in (_PARTS if (folder / "train").is_dir() else _PARTS[:1])}
    column = None
    for table in path_rows(path):
        column = _person_column(path, table, person)
        if LABEL not in table.columns:
            raise InputError(f"{path} has no column {LABEL!r}; it has: {', '.join(table.columns)}")
        labels = canonical_texts(table.columns[LABEL]).to_pylist()
        people = [None] * len(labels) if column is None else _cells(table.columns[column])
        for line, name, label, whose in zip(table.lines.tolist(), names_of(path, table), labels, people, strict=True):
            relative = inside(folder, name, f"{path}, line {line}", links)
            if (before := seen.setdefault(relative, line)) != line:
                raise InputError(f"{path}, line {line}: {name} is also in line {before}; list each image once")
            part = relative.partition("/")[0] if len(parts) > 1 else "train"
            if part not in parts:
                raise InputError(
                    f"{path}, line {line}: {name} is neither in train/ nor in test/, and {folder} has train/; move the "
                    "image, or rename the folder"
                )
            parts[part].append(
                PictureFile(str(folder / relative), relative, os.fsencode(relative), label, int(line), whose)
            )
    return column, {part: files for part, files in parts.items() if files or part == "train"}


def _cells(cells: object) -> list[object]:
    listed = getattr(cells, "to_pylist", None)
    return list(cells) if listed is None else list(listed())  # type: ignore[call-overload]  # whatever a table has


def _person_column(path: Path, table: Table, person: str | None) -> str | None:
    if person is None:
        if PERSON in table.columns:
            return PERSON
        # Not taken for it, nor overlooked: whose the pictures are would be lost without a word.
        for other in table.columns:
            if other.casefold() == PERSON:
                raise InputError(
                    f"{path} has a column {other!r}, and the person column is {PERSON!r}: give --person {other}, or "
                    "rename the column"
                )
        return None
    if column_name(person) not in table.columns:
        raise InputError(f"{path} has no column {person!r}; it has: {', '.join(table.columns)}")
    return column_name(person)


def path_rows(path: Path) -> Iterator[Table]:
    """Yield the rows of a table with a column of paths, some at once.

    Raises
    ------
    InputError
        If it has no such column, or a row of another number of cells.
    """
    layout = None if path.suffix in PARQUET else sniffed_layout(require_file(path))[0]
    for table in raw_rows(path, layout, _ROWS, most=most_rows()):
        if PATH not in table.columns:
            raise InputError(f"{path} has no column {PATH!r}; it has: {', '.join(table.columns)}")
        for line, fault in zip(table.lines.tolist(), table.faults or (), strict=False):
            if fault is not None:
                raise InputError(f"{path}, line {line}: {fault}; correct the line")
        yield table


def names_of(path: Path, table: Table) -> list[str]:
    """Return the cells of a table's column of paths.

    Raises
    ------
    InputError
        If one is empty.
    """
    names = ["" if cell is None else str(cell).strip() for cell in _cells(table.columns[PATH])]
    if "" in names:
        raise InputError(f"{path}, line {int(table.lines[names.index('')])}: the path is missing; fill it")
    return names


def inside(folder: Path, name: str, place: str, links: dict[str, bool]) -> str:
    """Return a path below a folder in one spelling.

    Parameters
    ----------
    folder : Path
    name : str
    place : str
        For messages.
    links : dict
        What is known of folders on the path: whether each is a link.

    Raises
    ------
    InputError
        If it leads out of the folder or through a link, or its suffix is not that of an image.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name or not pure.parts:
        raise InputError(
            f"{place}: {_text(name)!r} is not a path below {folder}; write it relative to the table's folder, with /"
        )
    if not is_picture(pure.name):
        raise InputError(f"{place}: {_text(name)!r} does not end like an image's name: {', '.join(ENDINGS)}")
    for depth in range(1, len(pure.parts) + 1):
        above = "/".join(pure.parts[:depth])
        if above not in links:
            try:
                links[above] = stat.S_ISLNK(os.lstat(folder / above).st_mode)
            except OSError:
                links[above] = False
        if links[above]:
            raise InputError(f"{place}: {_text(above)} is a link; links are not followed: put the file there")
    return str(pure)


def people_of(files: Sequence[PictureFile], rule: str, part: str) -> list[PictureFile]:
    """Return images with the person that a rule finds in each file's path.

    Parameters
    ----------
    files : sequence of PictureFile
    rule : str
        A regular expression with one group, as RE2 has them (in linear time), of the whole path below the set's folder,
        or below ``train/`` and ``test/`` where the set has these: a person may have images in both.
    part : str
        The one that they are of, which paths in a table begin with.

    Raises
    ------
    InputError
        If it is not such an expression, or does not match a path: an image without a match is not a separate person.
    """
    # Where a rule is given alone: few sets have one.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(rule, options)
    except re2.error as error:
        said = error.args[0].decode("utf-8", "replace") if error.args and isinstance(error.args[0], bytes) else error
        raise InputError(
            f"--person-from '{rule}' is invalid: {said}; give an RE2 regular expression, without look-around and back "
            "references"
        ) from None
    if pattern.groups != 1:
        raise InputError(
            f"--person-from '{rule}' has {pattern.groups} groups; give exactly one group (in brackets) for the person"
        )
    found = []
    for file in files:
        within = file.name.removeprefix(f"{part}/") if file.line else file.name
        match = None
        with suppress(UnicodeEncodeError):
            # Of bytes that are no text there is no person.
            match = pattern.fullmatch(within)
        if match is None or not match[1]:
            raise InputError(
                f"{file.shown}: --person-from '{rule}' does not match its whole path, folders "
                "included; correct the rule or the name"
            )
        found.append(replace(file, person=match[1]))
    return found


def doubts_about_people(files: Sequence[PictureFile], people: Sequence[object], most: int) -> Iterator[str]:
    """Yield what may be wrong with whose images they are, for their owner's screen alone: counts of private rows.

    Parameters
    ----------
    files : sequence of PictureFile
        All that train.
    people : sequence of str
        Whose each of them is.
    most : int
        The most rows of one person that are taken.
    """
    classes: dict[object, set[str | None]] = {}
    for file, whose in zip(files, people, strict=True):
        classes.setdefault(whose, set()).add(file.label)
    several = sum(len(labels) > 1 for labels in classes.values())
    if 2 * several > len(classes):
        yield (
            f"{several:,} of {len(classes):,} people have images of several classes, up to "
            f"{max(map(len, classes.values()))} of them; if these are different people, their identifier is ambiguous: "
            "let --person-from take the folder as well"
        )
    beyond = [rows for rows in Counter(people).values() if rows > most]
    if beyond:
        yield (
            f"{len(beyond):,} of {len(classes):,} people have more than {most} images, up to {max(beyond):,}; the "
            "others of theirs are left out: declare a larger --rows-per-person if that is too few"
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """Some images that a model is asked about.

    Attributes
    ----------
    lines : int array (m,)
        From 1: in a folder by the order of paths, in a table its lines.
    names : list of str
        As they are asked for.
    paths : list of str
        Where they lie.
    cells : object
        Those of the column that is kept; None without one.
    """

    lines: NDArray[np.int64]
    names: list[str]
    paths: list[str]
    cells: Any = None


def asked_pictures(source: Path, rows: int, column: str | None = None) -> Iterator[Asked]:
    """Yield images of a folder in the order of their paths, of a table of paths, or of one file, some at once.

    Parameters
    ----------
    source : Path
    rows : int
        How many at once.
    column : str, optional
        Of a table: one that is kept.

    Raises
    ------
    InputError
        If the input has another type, a path leads out of the table's folder, or the column is unknown.
    """
    if is_table(source) and not source.is_dir():
        links = dict[str, bool]()
        for table in path_rows(source):
            if column is not None and column not in table.columns:
                raise InputError(f"{source} has no column {column!r}; it has: {', '.join(table.columns)}")
            names = [
                inside(source.parent, name, f"{source}, line {line}", links)
                for line, name in zip(table.lines.tolist(), names_of(source, table), strict=True)
            ]
            paths = [str(source.parent / name) for name in names]
            yield Asked(table.lines, names, paths, None if column is None else table.columns[column])
        return
    if column is not None:
        raise InputError(f"{source} is not a table with a column {column!r}; paths of a folder are always copied")
    if source.is_dir():
        found = sorted((name for name, _ in files_below(source)), key=os.fsencode)
        places = [str(source / name) for name in found]
    elif is_picture(source.name):
        found, places = [source.name], [str(source)]
    elif not source.exists():
        raise InputError(f"{source} does not exist; give an image, a folder of images, or a table of their paths")
    else:
        raise InputError(
            f"{source}: this model needs images; give an image, a folder of images, or a table of their paths"
        )
    for first in range(0, len(found), rows):
        some = slice(first, first + rows)
        names = [_text(name) for name in found[some]]
        yield Asked(np.arange(first + 1, first + 1 + len(names), dtype=np.int64), names, places[some])


def count_asked(source: Path, passed: Counter[str] | None = None) -> int | None:
    """Return how many images a folder holds; None of anything else. ``passed`` counts its other files."""
    return sum(1 for _ in files_below(source, passed)) if source.is_dir() else None
