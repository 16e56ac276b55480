"""Requests to ingest rows, validated field by field before anything is read.

Names, help and defaults are written here alone; the command line shows what this model says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field, PositiveInt

from storage.errors import InputError
from storage.ledger.charges import Cap, require_soft_limit
from storage.people import MOST_ROWS, People
from storage.pictures.declaration import Alpha, Fit, Palettes, Pictures, Pixels
from storage.refs import OnViolation, Scaling, TableColumn, Visibility
from tasks.planning.configuration import RelationInForce


class AccountRequest(BaseModel, frozen=True, extra="forbid"):
    """The account that pays, as its owner declares it before rows are read for a release."""

    heading: ClassVar[str] = "Account"

    account: Annotated[
        str | None, Field(description="Account that pays for releases of these rows. Default: the data set's name.")
    ] = None
    epsilon_cap: Annotated[
        float | None, Field(description="Cap: maximum total ε of the account. Required if private.")
    ] = None
    delta_cap: Annotated[float | None, Field(description="δ of the cap; below 1/n. Required if private.")] = None
    soft_limit: Annotated[
        float | None,
        Field(
            description="Refuse charges above this ε until you lift it. It is below the cap's ε, which stays the "
            "guarantee. New accounts only."
        ),
    ] = None
    allow_idealised: Annotated[
        bool, Field(description="Allow algorithms proved in real arithmetic only (idealised numerics).")
    ] = False
    disjoint_people: Annotated[
        str, Field(description="Declare different people, with the reason. The reason is recorded.")
    ] = ""
    relation: Annotated[
        RelationInForce | None, Field(description="Neighbouring relation of a new account. Default: replace-one.")
    ] = None
    group_size: Annotated[int, Field(description="Largest number of rows of one person.")] = 1

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
            raise InputError("a cap consists of two numbers: give both --epsilon-cap and --delta-cap")
        else:
            cap = Cap(epsilon=self.epsilon_cap, delta=self.delta_cap)
        require_soft_limit(cap, self.soft_limit)
        return cap


class RowsRequest(BaseModel, frozen=True, extra="forbid"):
    """The kind of the rows, where no schema declares it, and the treatment of invalid ones."""

    heading: ClassVar[str] = "Rows"

    dimension: Annotated[int | None, Field(description="Features per row. Required if private.")] = None
    classes: Annotated[
        tuple[str, ...] | None, Field(description="Class names: --classes=-1,1. Required if private.")
    ] = None
    label_range: Annotated[
        tuple[float, float] | None,
        Field(description="Range of numeric labels: --label-range=0,10. Required if private."),
    ] = None
    image_shape: Annotated[
        tuple[PositiveInt, ...] | None,
        Field(description="Shape of images: --image-shape=16,16. height,width or channels,height,width."),
    ] = None
    normalisation: Annotated[str | None, Field(description="Default normalisation for runs on this set.")] = None
    on_violation: Annotated[
        OnViolation,
        Field(description="How to treat rows outside the schema. Dropped private rows stay as null records."),
    ] = OnViolation.REFUSE
    scaling: Annotated[
        Scaling | None, Field(description="How a table's numbers are scaled. Default: the schema's.")
    ] = None


class PeopleRequest(BaseModel, frozen=True, extra="forbid"):
    """The declaration of the rows that belong to one person."""

    heading: ClassVar[str] = "People"

    person: Annotated[
        str | None,
        Field(description="Column that names the person. For Parquet without a schema, or a table of images."),
    ] = None
    person_from: Annotated[
        str | None,
        Field(
            description="Regular expression of an image's path. Its one group is the person; the path begins below "
            "the set's folder."
        ),
    ] = None
    rows_per_person: Annotated[
        PositiveInt | None, Field(description=f"Maximum rows or images per person. Default: {MOST_ROWS}.")
    ] = None
    namespace: Annotated[
        str | None, Field(description="Kind of the identifiers, for example the record numbers of one hospital.")
    ] = None


class ImagesRequest(BaseModel, frozen=True, extra="forbid"):
    """The way in which images are read."""

    heading: ClassVar[str] = "Images"

    side: Annotated[
        PositiveInt | None, Field(description="Side to which images are scaled, in pixels. Default: 32.")
    ] = None
    pixels: Annotated[Pixels | None, Field(description="What a pixel is. Required if private.")] = None
    fit: Annotated[Fit | None, Field(description="Crop to the middle square, or pad to a square. Default: middle.")] = (
        None
    )
    alpha: Annotated[
        Alpha | None, Field(description="Background colour behind transparent pixels. Default: refuse such images.")
    ] = None
    palettes: Annotated[
        Palettes | None, Field(description="Whether to read a palette's colours. Default: refuse such images.")
    ] = None


class LimitsRequest(BaseModel, frozen=True, extra="forbid"):
    """Bounds on what is read."""

    heading: ClassVar[str] = "Limits"

    max_rows: Annotated[
        PositiveInt | None, Field(description="Maximum rows per part (train, test). Default: 100 million.")
    ] = None
    max_bytes: Annotated[
        PositiveInt | None,
        Field(description="Maximum size of a file in bytes, decompressed. Default: 32 times a compressed file's size."),
    ] = None


class IngestRequest(
    LimitsRequest, ImagesRequest, PeopleRequest, RowsRequest, AccountRequest, frozen=True, extra="forbid"
):
    """The owner's request to ingest rows; see ``unitball ingest --help``."""

    name: Annotated[str, Field(description="Name of the data set.")]
    format: Annotated[
        str | None,
        Field(
            description="Format of the files: csv, parquet, libsvm, images, idx, cifar10, cifar100, sklearn or openml, "
            "or that of a plug-in. Required except for bundled data sets."
        ),
    ] = None
    path: Annotated[Path | None, Field(description="File or folder.")] = None
    visibility: Annotated[Visibility, Field(description="Whether rows are private. Private rows need a cap.")] = (
        Visibility.PRIVATE
    )
    not_derived: Annotated[
        str,
        Field(
            description="Reason why public rows do not come from the synthetic rows that they resemble. The reason is "
            "recorded."
        ),
    ] = ""
    schema_path: Annotated[
        Path | None, Field(description="YAML schema for CSV and Parquet: a file, or a bundled one by name.")
    ] = None
    parties: Annotated[Mapping[str, Path], Field(description="File of one party: NAME=FILE; repeat for each.")] = {}
    test_path: Annotated[Path | None, Field(description="File of test rows.")] = None
    people: Annotated[People | None, Field(description="People of rows without a schema.")] = None
    columns: Annotated[tuple[TableColumn, ...], Field(description="Features of each column, without a schema.")] = ()

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
        """Return how images are read; None where nothing is said of it.

        Raises
        ------
        InputError
            If they cannot be read so.
        """
        said = {name: getattr(self, name) for name in ("side", "pixels", "fit", "alpha", "palettes")}
        given = {name: value for name, value in said.items() if value is not None}
        return Pictures(**given) if given else None
