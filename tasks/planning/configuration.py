"""The parameters of a training run, validated by name before anything is read or charged.

Names, help, bounds and defaults are written here alone: the command line, Prefect's form and YAML specifications
show what this model says. How the mathematics' own types travel through Pydantic stands here, too.
"""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from dpalgos.guarantees import RELATIONS, Loss, Neighbours, Setting, loss_from_json, loss_to_json
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import AlgorithmSpec


def _in_force(value: object) -> Neighbours:
    if value not in set(Neighbours):
        raise ParameterError(f"{value!r} is unknown; give one of {', '.join(RELATIONS)}")
    return Neighbours(str(value)).in_force()


# Forms and help offer those in force; others are refused with a reason.
RelationInForce = Annotated[
    Neighbours, BeforeValidator(_in_force), WithJsonSchema({"type": "string", "enum": [str(one) for one in RELATIONS]})
]


Json = dict[str, object]


def _setting_json(setting: Setting) -> Json:
    return {**dataclasses.asdict(setting), "sizes": list(setting.sizes)}


LossField = Annotated[
    Loss,
    BeforeValidator(lambda value: loss_from_json(dict(value)) if isinstance(value, Mapping) else value),
    PlainSerializer(loss_to_json),
]
AlgorithmField = Annotated[
    AlgorithmSpec,
    PlainSerializer(lambda spec: {"kind": spec.kind, "name": spec.name, "parameters": dict(spec.parameters)}),
]
SettingField = Annotated[Setting, PlainSerializer(_setting_json)]


_MOST_NAMES = 6
_PUBLIC_DELTA = 1e-5
# Result tables hold 64-bit integers.
_MOST = 10**18


def _require_known(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:_MOST_NAMES]
        raise UnknownNameError(f"unknown {what} {name!r}; nearest: {', '.join(near)}")


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredName:
    """Annotates a string that names something registered: checked, and an enumeration in the model's JSON schema.

    The registry is imported when a value is checked or the schema is made (at deployment), not with this module, so
    that help is shown without it.

    Parameters
    ----------
    kind : str
        Of the registry: ``"systems"``, ``"trainers"``, ….
    also : tuple of str
        Further valid names, which are not registered.
    """

    kind: str
    also: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the names that are allowed, sorted."""
        from dpalgos.registry import names

        return tuple(sorted((*names(self.kind), *self.also)))

    def _check(self, name: str) -> str:
        _require_known(name, self.names(), self.kind.rstrip("s"))
        return name

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {**handler(schema), "enum": list(self.names())}


def split_features(text: str) -> tuple[str, str | None]:
    """Return name and file of what ``features`` says: ``NAME``, or ``NAME:FILE`` for maps that a file says.

    Raises
    ------
    UnknownNameError
        If no public map or kind of encoder has this name.
    ParameterError
        If an encoder comes without a file, or another map with one.
    """
    from dpalgos.registry import lookup, names

    name, colon, file = text.partition(":")
    encoders = names("encoders")
    public = [one for one in names("projections") if not lookup("projections", one).reads_rows]
    _require_known(name, sorted([*encoders, *public]), "public map")
    if name in encoders and not file:
        raise ParameterError(f"{name} is your own encoder: give its file, for example {name}:encoder.{name}")
    if name not in encoders and colon:
        raise ParameterError(f"{name} needs no file; omit {colon}{file}")
    return name, file or None


def _map_that_reads_no_rows(text: str) -> str:
    split_features(text)
    return text


def _values(value: object) -> object:
    """Return the values that a text separates by commas, each as JSON where it is JSON; anything else as it is."""
    if not isinstance(value, str):
        return value if isinstance(value, list | tuple) else (value,)
    values: list[object] = []
    for text in value.split(","):
        try:
            values.append(json.loads(text))
        except ValueError:
            values.append(text)
    return tuple(values)


_AIMS = r"^(balanced|f1|recall=(1|0?\.\d*[1-9]\d*)|cost=[1-9]\d*(\.\d+)?:[1-9]\d*(\.\d+)?)$"
_LOSSES = r"^\d{1,7}:(advertise|share|mask|unmask)$"


def _an_aim(value: object) -> object:
    # A form knows the pattern; whoever types is told what there is.
    if isinstance(value, str) and not re.search(_AIMS, value):
        raise ValueError("give balanced, f1, recall=R with R above 0 and at most 1, or cost=A:B with numbers from 1 on")
    return value


def _a_loss(value: object) -> object:
    if isinstance(value, str) and not re.search(_LOSSES, value):
        raise ValueError("give a party's number and the round: 2:advertise, 2:share, 2:mask or 2:unmask")
    return value


_COLLUDERS = "secagg: parties that may collude with the server. Separate parties: default a third of them, rounded up."


class SecureSettings(BaseModel, frozen=True, extra="forbid"):
    """The fault model of secure aggregation, and who is lost in the simulation."""

    dropouts: Annotated[int, Field(ge=0, description="secagg: parties that may drop out during the run.")] = 0
    colluders: Annotated[int, Field(ge=0, description=_COLLUDERS)] = 0
    absent: Annotated[
        tuple[Annotated[str, Field(pattern=_LOSSES), BeforeValidator(_a_loss)], ...],
        Field(
            description="secagg: simulated dropouts, PARTY:ROUND. Rounds: advertise, share, mask, unmask.",
            examples=[["2:mask"]],
        ),
    ] = ()
    consistent_survivors: Annotated[
        bool, Field(description="secagg: assume that the server sends all parties the same survivors.")
    ] = False


class DataSettings(BaseModel, frozen=True, extra="forbid"):
    """Data set of a run."""

    dataset: Annotated[str, Field(min_length=1, description="Name of a registered data set.", examples=["digits"])] = (
        "digits"
    )


class BudgetSettings(BaseModel, frozen=True, extra="forbid"):
    """Budget of a run."""

    epsilon: Annotated[
        float | None,
        Field(
            gt=0,
            le=1000,
            allow_inf_nan=False,
            description="ε of the run: the bound for each row or person, at any party. Default: 1 in train, "
            "where private rows then need --yes; otherwise required, except for algorithms without noise.",
            examples=[1.0],
        ),
    ] = None
    delta: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="δ of the run. Default: 82 % (105/128) of the cap's δ if all noise is Gaussian, else 10 % of "
            "it; 1e-5 on public rows.",
            examples=[1e-6],
        ),
    ] = None

    @property
    def stated_delta(self) -> float:
        """Delta, or what public rows' runs state theirs at; a run's start settles it for rows with a cap."""
        return _PUBLIC_DELTA if self.delta is None else self.delta


class AlgorithmSettings(BaseModel, frozen=True, extra="forbid"):
    """Algorithm of a run: a named system or its parts, and their parameters."""

    heading: ClassVar[str] = "Algorithm and features"

    algorithm: Annotated[
        Annotated[str, RegisteredName("systems")] | None,
        Field(
            description="Algorithm: a system of `unitball algorithms`. Omit it with `trainer`.",
            examples=["unitball", "fed-dpdr-dpml"],
        ),
    ] = "unitball"
    features: Annotated[
        Annotated[str, AfterValidator(_map_that_reads_no_rows)] | None,
        Field(
            description="Public feature map, applied to each row first. A name (hog, scattering) or onnx:FILE. "
            "Default: the system's.",
            examples=["onnx:encoder.onnx"],
        ),
    ] = None
    public_dataset: Annotated[
        str | None,
        Field(description="Public data set used to centre and whiten features."),
    ] = None
    normalisation: Annotated[
        Annotated[str, RegisteredName("normalisations")] | None,
        Field(
            description="Norm bound of rows: unit-norm, clip or none. Public rows also: minmax. Default: the system's."
        ),
    ] = None
    mirror: Annotated[
        bool | None,
        Field(
            description="Whether a mirrored image keeps its class. True for photographs and clothes, not for letters "
            "and "
            "digits. Features are then averaged over both images, and unitball adds an encoder that ignores "
            "mirroring. Default: for colour images only, without that encoder."
        ),
    ] = None
    counts_of: Annotated[
        str | None,
        Field(
            description="Version of the table whose histograms (released by `unitball describe`) define the column "
            "features. "
            "Default: the version that is trained on; with `horizon` the first night's."
        ),
    ] = None
    basis: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{8,64}$",
            exclude_if=lambda value: value is None,
            description="Key of principal components that `unitball reduce` released. They replace the system's own "
            "feature "
            "maps. --dimension is their number (default: those above the noise). No further charge; the model "
            "rests on them.",
            examples=["1a4eb076c5cc"],
        ),
    ] = None
    projection: Annotated[
        Annotated[str, RegisteredName("projections")] | None,
        Field(description="Projection. Default: the system's."),
    ] = None
    dimension: Annotated[
        int | None, Field(ge=1, description="Target dimension k of the projection. Default: min(20, d).", examples=[20])
    ] = None
    trainer: Annotated[
        Annotated[str, RegisteredName("trainers")] | None,
        Field(
            description="Trainer, instead of a system. Combine it with a projection and an aggregation. Default: the "
            "system's."
        ),
    ] = None
    aggregation: Annotated[
        Annotated[str, RegisteredName("aggregators")] | None,
        Field(description="How models of parties are combined. Default: the system's."),
    ] = None
    class_weight: Annotated[
        Annotated[dict[str, Annotated[float, Field(gt=0, le=1)]], Tag("weights")]
        | Annotated[Literal["balanced"], Tag("word")],
        Field(
            discriminator=Discriminator(lambda given: "word" if isinstance(given, str) else "weights"),
            description="Weights of classes: NAME=WEIGHT, or balanced. A weight is above 0 and at most 1 and comes "
            "from public knowledge. Default: 1 for each class. With balanced, weights follow from noisy class counts. "
            "For noisy-gd these take 5 % of the budget (in μ²); discriminant-gd needs no extra budget.",
            examples=[{"honest": 0.04}],
        ),
    ] = {}
    tune: Annotated[
        dict[str, Annotated[tuple[object, ...], BeforeValidator(_values)]],
        Field(
            description="Candidate values of a parameter: NAME=A,B,C. One is chosen by private selection, within the "
            "run's budget. Needs trust central.",
            examples=[{"clip": [0.5, 0.25]}],
        ),
    ] = {}
    tuned_on: Annotated[
        str | None,
        Field(
            min_length=1,
            exclude_if=lambda value: value is None,
            description="Synthetic or public data set on which `tune` compares candidates, at no charge. With "
            "synthetic rows "
            "the run rests on their releases. Without `tune`: the set on which the parameters were chosen. "
            "Default: the private rows, within the run's budget.",
            examples=["clinic-synthetic"],
        ),
    ] = None
    parameters: Annotated[
        dict[str, object],
        Field(
            description="Parameter of the trainer or projection, by name. For example clip=0.5, or trainer.clip=0.5 "
            "if both have one. Default: those of the algorithm.",
            examples=[{"trainer.regularisation": 0.01}],
        ),
    ] = {}

    @property
    def system(self) -> str:
        """Name of the algorithm that runs: the system's name, or those of its parts."""
        return self.algorithm or "+".join(filter(None, (self.projection, self.trainer, self.aggregation)))


class TrustSettings(BaseModel, frozen=True, extra="forbid"):
    """Whom the parties trust, and which tables the releases do not distinguish."""

    heading: ClassVar[str] = "Trust and secure sums"

    trust: Annotated[
        Annotated[str, RegisteredName("trusts")] | None,
        Field(
            description="Trust model: local, secagg or central. Default: the first that `unitball algorithms` names."
        ),
    ] = None
    neighbours: Annotated[
        RelationInForce | None,
        Field(
            title="Neighbours",
            description="Neighbouring relation. Values: replace-one, or replace-special, which compares a row with a "
            "null row. Default: the account's.",
        ),
    ] = None
    secure: Annotated[
        SecureSettings,
        Field(title="Secure", description="Faults that secure sums tolerate (secagg)."),
    ] = SecureSettings()


class SystemSettings(TrustSettings, AlgorithmSettings, frozen=True, extra="forbid"):
    """Algorithm and trust model of a run."""


class PartitionSettings(BaseModel, frozen=True, extra="forbid"):
    """Assignment of rows to parties, and held-out rows."""

    heading: ClassVar[str] = "Parties and held-out rows"

    parties: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="Number of simulated parties. Ignored if parties have their own files.",
            examples=[5],
        ),
    ] = 5
    sizes: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None,
        Field(description="Rows of each party, for the partition sized: 500,300,200."),
    ] = None
    rows_per_party: Annotated[
        int | None, Field(ge=1, description="Rows of each party. Default: all rows, divided.")
    ] = None
    partition: Annotated[
        Annotated[str, RegisteredName("partitions", also=("own",))] | None,
        Field(
            description="How rows are divided among parties. Values: even, sized (with `sizes`), dirichlet, by-label, "
            "or own (the parties' files). Default: own where parties have files, else even."
        ),
    ] = None
    partition_seed: Annotated[int, Field(ge=0, le=_MOST, description="Seed of the public permutation of rows.")] = 0
    test_fraction: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="Fraction of rows held out for evaluation. Ignored if the set has test rows. Default: 0.2 of "
            "public rows; for private rows computed from the number of rows, the classes and ε.",
        ),
    ] = None


class EvaluationSettings(BaseModel, frozen=True, extra="forbid"):
    """Evaluation of the model."""

    heading: ClassVar[str] = "Evaluation"

    evaluation: Annotated[
        bool,
        Field(description="Evaluate the model. Private rows: by a noisy confusion matrix of held-out rows."),
    ] = True
    roc: Annotated[
        bool,
        Field(
            description="Measure AUC and the ROC curve. On private rows by a noisy release of score sums, which takes "
            "half of the evaluation's budget (in μ²)."
        ),
    ] = False
    aim: Annotated[
        str | None,
        Field(
            pattern=_AIMS,
            description="Choose the threshold for a goal. Values: balanced, f1, recall=0.8 or cost=1:20 (a false "
            "positive "
            "costs 1, a false negative 20). Requires `roc` and two classes. No further charge.",
        ),
        BeforeValidator(_an_aim),
    ] = None
    positive: Annotated[
        str | None,
        Field(
            min_length=1,
            description="The positive class of two. Precision, recall, F1, threshold, scores and effects refer to "
            "it. Default: the key positive of the schema's label, else the last declared class. No further charge.",
            examples=["ill"],
        ),
    ] = None
    by: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Evaluate by group: the values of this column. Ranges are divided into brackets. On private "
            "rows all groups together cost as much as one confusion matrix. With `roc` and two classes also the "
            "scores of each group; with `aim` its rates at the chosen threshold.",
            examples=["sex"],
        ),
    ] = None

    @model_serializer(mode="wrap")
    def _without_what_nobody_named(self, dumped: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out a positive class that nobody has named: what is configured is the digest of identities."""
        return {name: value for name, value in dumped(self).items() if name != "positive" or value is not None}


class HorizonSettings(BaseModel, frozen=True, extra="forbid"):
    """Nights over which rows arrive, and how often one of them may come back."""

    heading: ClassVar[str] = "Nights"

    horizon: Annotated[
        int | None,
        Field(
            ge=1,
            le=3653,
            description="Number of nights, for one charge. A night is a new version of the data set; sums are "
            "released each night.",
            examples=[365],
        ),
    ] = None
    participations: Annotated[
        int,
        Field(
            ge=1,
            description="Maximum nights per row or person. With `horizon`; an edited row counts again.",
        ),
    ] = 1
    separation: Annotated[
        int, Field(ge=1, description="Minimum nights between two of them. With `participations`.")
    ] = 1
    expected_rows: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MOST,
            description="Expected rows over all nights. With `horizon`. Default: the rows of the first night, times "
            "the nights.",
        ),
    ] = None
    bands: Annotated[
        int | None,
        Field(
            ge=1,
            description="Number of nights whose sums a party keeps. With `horizon`. Default: all nights if a row "
            "takes part "
            "in one, else the number with the least noise.",
        ),
    ] = None


class NoiseSettings(BaseModel, frozen=True, extra="forbid"):
    """Selection of the noise."""

    heading: ClassVar[str] = "Repetition and deadline"

    replicate: Annotated[
        int,
        Field(
            ge=0,
            le=_MOST,
            description="Repeat a run with fresh noise, at a new charge. Runs with equal numbers are one release, "
            "charged "
            "once.",
        ),
    ] = 0
    seed: Annotated[
        int | None,
        Field(ge=0, le=_MOST, description="Public seed of the noise: public rows only. Default: the parties' secrets."),
    ] = None


class DeadlineSettings(BaseModel, frozen=True, extra="forbid"):
    """Time at which releases of private rows appear."""

    heading: ClassVar[str] = "Repetition and deadline"

    deadline: Annotated[
        float | None,
        Field(
            gt=0,
            le=10**6,
            allow_inf_nan=False,
            description="Fixed duration per release of private rows, in seconds. It hides the computing time, which "
            "depends "
            "on rows. Preparation of rows has the same duration. Work that takes longer fails.",
            examples=[30.0],
        ),
    ] = None
    deadline_miss: Annotated[
        float,
        Field(
            gt=0,
            le=0.01,
            description="Probability of missing the deadline. It holds for any rows and is added to δ. With "
            "`deadline`.",
        ),
    ] = 1e-9


class TrainingConfig(
    DeadlineSettings,
    NoiseSettings,
    HorizonSettings,
    EvaluationSettings,
    PartitionSettings,
    SystemSettings,
    BudgetSettings,
    DataSettings,
    frozen=True,
    extra="forbid",
):
    """One training run, in sections; what people fill in is flat, and a function asks for the section that it needs."""

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        implied = (("trainer", "algorithm", None), ("sizes", "partition", "sized"))
        defaults: dict[str, object] = {name: value for given, name, value in implied if values.get(given) is not None}
        if isinstance(values.get("sizes"), (list, tuple)):
            defaults["parties"] = len(values["sizes"])
        # The settings of secure aggregation may stand beside the others.
        flat = {name: values[name] for name in SecureSettings.model_fields if name in values}
        nested = values.get("secure", {})
        if flat and isinstance(nested, dict):
            values = {name: value for name, value in values.items() if name not in flat} | {
                "secure": {**nested, **flat}
            }
        return {**defaults, **values}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = [
            *_faults_of_parties(self),
            *_faults_of_evaluation(self),
            *_faults_of_system(self),
            *_faults_of_deadline(self),
            *_faults_of_horizon(self),
        ]
        if found:
            raise ValueError("; ".join(found))
        return self


# Fields stand in backticks, so that the command line can call them by their options.
def _faults_of_parties(config: PartitionSettings) -> Iterator[str]:
    if config.sizes is None:
        return
    if config.parties != len(config.sizes):
        yield (
            f"`parties` {config.parties} and `sizes` of {len(config.sizes)} parties are both given: omit `parties`, "
            f"or give {len(config.sizes)}"
        )
    if config.partition not in (None, "sized"):
        yield f"`partition` {config.partition} takes no `sizes`: omit one of them"
    if config.rows_per_party is not None:
        yield "give `sizes` or `rows_per_party`, not both"


def _faults_of_evaluation(config: EvaluationSettings) -> Iterator[str]:
    if not config.evaluation and (config.roc or config.aim is not None or config.by is not None):
        yield "`roc`, `aim` and `by` need an evaluation, which `no_evaluation` omits: omit it or them"
    if config.aim is not None and not config.roc:
        yield f"`aim` {config.aim} needs the noisy sums of `roc`: give `roc` too"


def _faults_of_system(config: AlgorithmSettings) -> Iterator[str]:
    named = {name.rpartition(".")[2] for name in config.parameters}
    if config.dimension is not None and "components" in named:
        yield "`dimension` and `parameters` both give the number of components: omit one of them"
    for field, given in (("class_weight", bool(config.class_weight)), ("mirror", config.mirror is not None)):
        if given and field in named:
            yield f"`{field}` is also among the `parameters`: omit it there"
    if config.basis is not None:
        incompatible = ("projection", "features", "public_dataset", "counts_of", "tuned_on")
        if others := [name for name in incompatible if getattr(config, name) is not None]:
            yield f"`basis` {config.basis} and `{others[0]}` both name a map of rows: omit one of them"
        if config.normalisation not in (None, "none"):
            yield f"`basis` {config.basis} uses rows as registered: omit `normalisation`"
    if config.algorithm is None and config.trainer is None:
        yield "name an `algorithm`, or a `trainer` (with or without a `projection`)"
    if config.algorithm is not None and config.trainer is not None:
        yield (
            f"`trainer` {config.trainer} and `algorithm` {config.algorithm} are both given: omit one of them. A "
            "trainer, with `projection` and `aggregation`, replaces a named system"
        )


def _faults_of_deadline(config: DeadlineSettings) -> Iterator[str]:
    # Forms fill in the default, which cannot be distinguished from no entry.
    if config.deadline is None and config.deadline_miss != DeadlineSettings.model_fields["deadline_miss"].default:
        yield "`deadline_miss` needs a `deadline`: give one"


def _faults_of_horizon(config: TrainingConfig) -> Iterator[str]:
    if config.horizon is not None and config.basis is not None:
        yield "`basis` does not apply to a `horizon`: omit it"
    if config.horizon is None:
        if (config.participations, config.separation, config.expected_rows, config.bands) != (1, 1, None, None):
            yield "`participations`, `separation`, `expected_rows` and `bands` need a `horizon`: give one"
        return
    if config.tune or config.tuned_on is not None:
        yield "`tune` and `tuned_on` do not apply to a `horizon`, whose sums are released every night: omit them"
    if config.roc or config.by is not None or config.deadline is not None:
        yield "`roc`, `by` and `deadline` do not apply to a `horizon`, which holds out no rows: omit them"
    if config.test_fraction:
        yield (
            "`test_fraction` does not apply to a `horizon`: all its rows train, each in one night. Omit it. A public "
            "set's own test rows are measured. The owner can keep labelled rows back from `unitball ingest` and "
            "compare them with the output of `unitball predict`"
        )


_MOST_TEXT = 100


def faults(error: ValidationError, flags: Mapping[str, str] | None = None) -> list[str]:
    """Return all faults that a validation found, each with its field, the bound and the value.

    Parameters
    ----------
    error : ValidationError
    flags : mapping of str to str, optional
        How fields are called instead, by the path to them.
    """
    found, flags = [], flags or {}
    for fault in error.errors():
        place = [str(part) for part in fault["loc"]]
        # A fault of an element of a list is one of the option that gives the list.
        name = next((flags[path] for end in range(len(place)) if (path := ".".join(place[: end + 1])) in flags), None)
        message = fault["msg"].removeprefix("Value error, ")
        if flags:
            message = re.sub("`(\\w+)`", lambda match: flags.get(match[1], match[1]), message)
        if place:
            shown = repr(fault["input"])
            got = shown if len(shown) <= _MOST_TEXT else shown[:_MOST_TEXT] + "…"
            message = f"{name or '.'.join(place)}: {message}" + ("" if got in message else f" (got {got})")
        found.append(message)
    return list(dict.fromkeys(found))
