"""Requests to ingest rows, validated field by field before anything is read.

Names, help and defaults are written here alone; the command line shows what this model says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt

from storage.errors import InputError
from storage.ledger.charges import Cap, require_soft_limit
from storage.people import MOST_ROWS, People
from storage.pictures.declaration import Alpha, Fit, Palettes, Pictures, Pixels
from storage.refs import OnViolation, Scaling, TableColumn, Visibility
from tasks.planning.configuration import RelationInForce


class AccountRequest(BaseModel, frozen=True, extra="forbid"):
    """What the owner says of the account that pays, where rows are first read for a release."""

    account: Annotated[
        str | None, Field(description="The population whose budget is charged; the data set's name if empty.")
    ] = None
    epsilon_cap: Annotated[float | None, Field(description="The most the account may ever spend.")] = None
    delta_cap: Annotated[float | None, Field(description="The delta of the cap; below 1/n.")] = None
    soft_limit: Annotated[
        float | None,
        Field(description="Refuse charges above this epsilon, below the cap's, until it is lifted. New accounts only."),
    ] = None
    allow_idealised: Annotated[
        bool, Field(description="Admit algorithms proved in real arithmetic only (idealised numerics).")
    ] = False
    disjoint_people: Annotated[
        str, Field(description="Declare that the people are others than before; the reason, which is recorded.")
    ] = ""
    relation: Annotated[RelationInForce | None, Field(description="Neighbouring relation of a new account.")] = None
    group_size: Annotated[int, Field(description="The largest number of rows of one person.")] = 1

    def cap(self) -> Cap | None:
        """Return the declared cap.

        Raises
        ------
        InputError
            If only one half of it is given, or a soft limit that is not below it.
        """
        if self.epsilon_cap is None and self.delta_cap is None:
            cap = None
        elif self.epsilon_cap is None or self.delta_cap is None:
            raise InputError("a cap has two numbers: give both --epsilon-cap and --delta-cap")
        else:
            cap = Cap(epsilon=self.epsilon_cap, delta=self.delta_cap)
        require_soft_limit(cap, self.soft_limit)
        return cap


class IngestRequest(AccountRequest, frozen=True, extra="forbid"):
    """What the owner says of rows that come in; see ``unitball ingest --help``."""

    name: Annotated[str, Field(description="The name the data set will go by.")]
    format: Annotated[str | None, Field(description="Format of the files; an unknown name lists all.")] = None
    path: Annotated[Path | None, Field(description="File or folder.")] = None
    visibility: Annotated[Visibility, Field(description="Private rows need an account and a cap.")] = Visibility.PRIVATE
    dimension: Annotated[int | None, Field(description="Features a row; declared for private rows.")] = None
    classes: Annotated[
        tuple[str, ...] | None, Field(description="Class names: --classes=-1,1; declared for private rows.")
    ] = None
    label_range: Annotated[
        tuple[float, float] | None, Field(description="Range of real labels: --label-range=0,10.")
    ] = None
    image_shape: Annotated[
        tuple[PositiveInt, ...] | None,
        Field(description="Where rows are images, height,width or channels,height,width: --image-shape=16,16."),
    ] = None
    normalisation: Annotated[str | None, Field(description="Default map for runs on this set.")] = None
    schema_path: Annotated[
        Path | None, Field(description="YAML schema for CSV and Parquet: a file, or the name of a bundled one.")
    ] = None
    on_violation: Annotated[
        OnViolation,
        Field(description="What becomes of rows outside the schema; dropped private rows stay as null records."),
    ] = OnViolation.REFUSE
    scaling: Annotated[
        Scaling | None, Field(description="How a table's numbers are scaled, instead of what its schema says.")
    ] = None
    parties: Annotated[Mapping[str, Path], Field(description="A party's own file; give one for each.")] = {}
    test_path: Annotated[Path | None, Field(description="File of test rows.")] = None
    people: Annotated[People | None, Field(description="Whose rows they are, of rows without a schema.")] = None
    columns: Annotated[
        tuple[TableColumn, ...], Field(description="Which features are which column's, of rows without a schema.")
    ] = ()
    person: Annotated[
        str | None, Field(description="Column of people, of Parquet without a schema or a table of pictures.")
    ] = None
    person_from: Annotated[
        str | None,
        Field(
            description="Of pictures: a regular expression of the path with its folders; its one group is the person."
        ),
    ] = None
    rows_per_person: Annotated[
        PositiveInt | None, Field(description=f"Rows or pictures of a person that are taken at most; {MOST_ROWS}.")
    ] = None
    namespace: Annotated[
        str | None, Field(description="What the people's identifiers are, such as a hospital's record numbers.")
    ] = None
    side: Annotated[PositiveInt | None, Field(description="Of pictures: pixels of a side they are brought to; 32.")] = (
        None
    )
    pixels: Annotated[Pixels | None, Field(description="Of pictures: what a pixel is; declared for private ones.")] = (
        None
    )
    fit: Annotated[Fit | None, Field(description="Of pictures: cut to the middle square, or padded to one.")] = None
    alpha: Annotated[
        Alpha | None, Field(description="Of pictures: what transparent pixels are laid on; refused if empty.")
    ] = None
    palettes: Annotated[
        Palettes | None, Field(description="Of pictures: whether a palette's colours are taken; refused if empty.")
    ] = None
    max_rows: Annotated[
        PositiveInt | None, Field(description="Largest number of rows of a part; 100 million if empty.")
    ] = None
    max_bytes: Annotated[
        PositiveInt | None,
        Field(
            description="Largest size of a file, decompressed, in bytes; 32 times a compressed file's size if empty."
        ),
    ] = None

    def declared_people(self) -> People | None:
        """Return what is declared of people outside a schema; the column has no name where the format itself has one.

        Raises
        ------
        InputError
            If it cannot be.
        """
        if self.people is not None:
            return self.people
        if self.person is None and self.rows_per_person is None and self.namespace is None:
            return None
        return People(self.person or "", self.rows_per_person or MOST_ROWS, self.namespace or "")

    def declared_pictures(self) -> Pictures | None:
        """Return how pictures are read; None where nothing is said of it.

        Raises
        ------
        InputError
            If they cannot be read so.
        """
        said = {name: getattr(self, name) for name in ("side", "pixels", "fit", "alpha", "palettes")}
        given = {name: value for name, value in said.items() if value is not None}
        return Pictures(**given) if given else None
