"""Images: a folder with a folder a class, or a table of paths and labels and perhaps of people."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import InputError
from storage.people import People, identifiers, named
from storage.pictures.declaration import ENDINGS, Pictures, Pixels
from storage.pictures.decoding import PictureError
from storage.pictures.places import Places
from storage.pictures.reading import kinds_of, read_files
from storage.readers.picture_files import (
    PictureFile,
    arranged,
    doubts_about_people,
    folder_files,
    is_table,
    parts_of,
    passed_over,
    people_of,
    table_files,
)
from storage.source import (
    Block,
    ReadOptions,
    Rows,
    Source,
    Tally,
    confirm,
    declared_bytes,
    most_rows,
    register_reader,
    settle,
    undeclared,
)

# Faults that are named before the rest is left unread.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class _Reading:
    """Settings by which images of a set are read.

    Attributes
    ----------
    place : str
        Of the set, for messages.
    declared : Images
    classes : frozenset of str
    drops : bool
        Whether an image that cannot be taken is left out instead of refused.
    keeps : bool
        Whether one that is left out stays as a null record, as on private sets.
    told : callable
        See :class:`storage.source.ReadOptions`.
    """

    place: str
    declared: Pictures
    classes: frozenset[str]
    drops: bool
    keeps: bool
    told: Callable[[str], object]

    def blocks(self, files: Sequence[PictureFile], whose: Sequence[object] | None, tally: Tally) -> Iterator[Block]:
        """Yield images in their order; the tally begins again with each reading."""
        tally.clear()
        with closing(read_files([file.path for file in files if self._taken(file)], self.declared)) as pictures:
            yield from self._blocks(files, pictures, whose, tally)

    def _blocks(
        self, files: Sequence[PictureFile], pictures: Iterator[Any], whose: Sequence[object] | None, tally: Tally
    ) -> Iterator[Block]:
        faults: list[str] = []
        step = max(16, min(1024, (1 << 19) // self.declared.dimension))
        for start in range(0, len(files), step):
            block, found = self._block(files[start : start + step], pictures)
            if whose is not None:
                block = replace(block, people=np.array(whose[start : start + step], dtype=object))
            tally["read"] += len(block.labels)
            tally["outside"] += len(found)
            if found and self.drops:
                tally["null" if self.keeps else "dropped"] += len(found)
                left = "counts as a null record" if self.keeps else "is left out"
                for fault in found:
                    self.told(f"{self.place}: {fault}; it {left}")
            elif found or faults:
                # All that are wrong are named at once, or many of them; none is stored any more.
                faults += found
                if len(faults) >= _NAMED:
                    break
                continue
            yield block if self.keeps or block.null is None else replace(block.kept(~block.null), null=None)
        if faults:
            few = "" if len(faults) < _NAMED else "at least "
            raise InputError(
                f"{self.place}: {few}{len(faults)} images cannot be read, and no rows were ingested; correct or "
                "remove them, or skip them with --on-violation drop: " + "; ".join(faults[:_NAMED])
            )

    def _taken(self, file: PictureFile) -> bool:
        return file.label in self.classes

    def _block(self, files: Sequence[PictureFile], pictures: Iterator[Any]) -> tuple[Block, list[str]]:
        """Return some images as rows, of those that are decoded in turn, and what is wrong with the others."""
        features = np.zeros((len(files), self.declared.dimension), dtype=np.float32)
        null, faults = np.zeros(len(files), dtype=bool), []
        for row, file in enumerate(files):
            if self._taken(file):
                found = next(pictures)
            elif file.link:
                # Beside the class folders; others are refused where they would be opened.
                found = PictureError("is a link")
            else:
                what = "no class" if not file.label else f"class {file.label!r}, which is not declared"
                found = PictureError(f"is of {what}")
            if isinstance(found, PictureError):
                null[row] = True
                faults.append(f"{file.shown} {found}")
            else:
                features[row] = found
        labels = np.array([file.label or "" for file in files], dtype=object)
        lines = np.array([file.line for file in files], dtype=np.int64) if files[0].line else None
        return Block(features, labels, lines, place=self.place, null=null if faults else None), faults


def _listed(path: Path, options: ReadOptions) -> tuple[str | None, dict[str, list[PictureFile]]]:
    """Return what names the people behind images, None where nothing does, and the images of each part.

    Raises
    ------
    InputError
        If two things say whose images they are, or nothing does although something is declared of people.
    """
    named_by = options.people.column if options.people is not None else ""
    if named_by and options.person_from is not None:
        raise InputError(f"{path}: --person and --person-from both define the person of an image; give one of them")
    if is_table(path):
        column, files = table_files(path, named_by or None)
        if column is not None and options.person_from is not None:
            raise InputError(
                f"{path} has a column {column!r}, and --person-from also defines the person; omit one of them"
            )
    elif named_by:
        raise InputError(f"{path} is not a table with a column {named_by!r}; give --person-from instead")
    else:
        passed = Counter[str]()
        column, files = None, {part: folder_files(at, passed) for part, at in parts_of(path, options.classes).items()}
        if said := passed_over(str(path), passed):
            options.told(said)
    if options.person_from is not None:
        files = {part: people_of(listed, options.person_from, part) for part, listed in files.items()}
        # Stands for the column: by another rule a later version's people would all be somebody new.
        column = f"path, by {options.person_from}"
    if column is None and options.people is not None:
        raise InputError(
            f"{path}: the person of an image is not declared; give --person-from, or a table with --person"
        )
    return column, files


def _kind(place: str, options: ReadOptions, files: Sequence[PictureFile]) -> Pixels:
    """Return what a pixel of a public set is, by the headers of all its images that can be read."""
    found = {one for one in kinds_of([file.path for file in files]) if isinstance(one, Pixels)}
    if Pixels.GREY_16 in found and len(found) > 1:
        raise InputError(f"{place} has images of 8 and of 16 bits; declare --pixels, and convert the others")
    if not found:
        raise InputError(f"{place} has no image that can be read; declare --pixels")
    return Pixels.COLOUR if Pixels.COLOUR in found else found.pop()


@register_reader("images", takes=("on_violation", "people", "pictures", "person_from"))
def read_pictures(path: str | Path, options: ReadOptions) -> Source:
    """Read images: a folder with a folder a class, or a table (CSV, Parquet) of path, label and perhaps person.

    Parameters
    ----------
    path : path
        The folder, with ``train/`` and ``test/`` perhaps, or the table, whose paths begin at its own folder.
    """
    given = Path(path)
    if options.label_range is not None:
        raise InputError(f"{given} holds classes, a label range is declared; omit it")
    if (bound := declared_bytes()) is not None:
        raise InputError(
            f"{given}: --max-bytes {bound} applies to files of rows, and images have a fixed limit: omit it; limit "
            "the number of images with --max-rows"
        )
    if options.on_violation.clips and not options.on_violation.drops:
        raise InputError(f"{given}: an image cannot be clipped; --on-violation is refuse or drop")
    private, place = not options.discover, str(given)
    column, files = _listed(given, options)
    if not files["train"]:
        raise InputError(f"{place} holds no images to train on: names that end in {', '.join(ENDINGS)}")
    if max(map(len, files.values())) > most_rows():
        raise InputError(f"{place} holds more than {most_rows()} images; if this is expected, give --max-rows")
    people = None
    if column is not None:
        people = People(column) if options.people is None else replace(options.people, column=column)
    whose = {} if people is None else {part: _whose(place, listed, people) for part, listed in files.items()}
    if people is not None:
        for doubt in doubts_about_people(files["train"], whose["train"], people.rows_per_person):
            options.noted(f"{place}: {doubt}")
    places: dict[str, Places] = {}
    if private and people is None and not is_table(given):
        for part, listed in files.items():
            earlier = options.earlier.get(part, ())
            files[part] = arranged(listed, earlier, place)
            places[part] = Places.after(earlier, [one.below for one in files[part]])
    declared, found = options.pictures or Pictures(), set()
    if declared.pixels is None:
        if private:
            raise undeclared({"pixels"} if options.classes else {"pixels", "classes"}, place)
        declared = replace(declared, pixels=_kind(place, options, files["train"]))
        found.add("pixels")
    confirm(options, place, dimension=declared.dimension, classes=options.classes or (), label_range=None)
    labels = (one.label for part in files.values() for one in part if one.label is not None)
    _, classes, discovered = settle(
        replace(options, dimension=declared.dimension), place, dimension=declared.dimension, labels=labels
    )
    drops = options.on_violation.drops
    reading = _Reading(place, declared, frozenset(classes), drops, private, options.told)
    tallies = {part: Tally() for part in files}
    return Source(
        format="images",
        place=place,
        dimension=declared.dimension,
        classes=classes,
        parts={part: Rows(reading.blocks, (listed, whose.get(part), tallies[part])) for part, listed in files.items()},
        found=discovered | found,
        tallies=tallies,
        table={"pictures": declared.document, "on_violation": str(options.on_violation)},
        image_shape=declared.shape,
        people=people,
        expected={part: len(listed) for part, listed in files.items()},
        places={"": places} if places else {},
    )


def _whose(place: str, files: Sequence[PictureFile], people: People) -> list[object]:
    """Return the identifier of each image's person; one that is nobody's is refused."""
    names = identifiers([one.person for one in files]) if files else np.zeros(0, dtype=object)
    known = named(names)
    if not known.all():
        nobody = files[int(np.argmin(known))]
        raise InputError(
            f"{place}: {nobody.shown} has no person: {nobody.person!r} in {people.column} is not a valid identifier; "
            "give Unicode text or a whole number"
        )
    return list(names)
