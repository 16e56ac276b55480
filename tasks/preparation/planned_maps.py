"""Public maps that a configuration puts before everything else, planned from references alone."""

from collections.abc import Sequence
from pathlib import Path

from dpalgos.features.whitening import PublicRowsWhitening
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, construct
from dpalgos.sentences import coded
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import AlgorithmSettings, split_features
from tasks.planning.identity import code_version, identity
from tasks.planning.resolution import parameters_of
from tasks.planning.rows import FeatureStep, MappedRows
from tasks.preparation.drawn import require_same_population
from tasks.preparation.encoder_files import read_encoder
from tasks.preparation.normalisation import plan_normalisation, require_source
from tasks.preparation.public_maps import map_identity


def plan_features(dataset: DatasetRef, config: AlgorithmSettings) -> tuple[FeatureStep, ...]:
    """Return the public maps that a configuration puts before everything else; no row is read and nothing is stored.

    An encoder's file is read and tried on a synthetic row. :func:`~tasks.preparation.public_maps.make_map` copies it
    into the root, by its content.

    Parameters
    ----------
    dataset : DatasetRef
        Normalised.
    config : AlgorithmSettings

    Raises
    ------
    InputError
        If a file is not there, or public rows do not fit.
    ParameterError
        If a parameter, or what a file says, does not fit the rows.
    RefusedError
        If rows to learn from are private, or those that are trained on.
    """
    steps: tuple[FeatureStep, ...] = ()
    if config.features is not None:
        name, file = split_features(config.features)
        parameters = parameters_of(config, "features")
        steps = (
            _from_parameters(dataset, name, parameters)
            if file is None
            else _from_file(dataset, name, file, parameters),
        )
    elif parameters_of(config, "features"):
        raise ParameterError("parameters of features are given without features: add --features, or omit them")
    if config.public_dataset is not None:
        steps += (_from_public_rows(dataset, config, steps),)
    elif parameters_of(config, "public"):
        raise ParameterError("parameters of public rows are given without public rows: add --public-dataset")
    return steps


def plan_mapping(dataset: DatasetRef, features: Sequence[FeatureStep]) -> MappedRows:
    """Return the rows of a normalised data set as public maps show them; no row is read."""
    return MappedRows(source=dataset, maps=tuple(features))


def _from_parameters(dataset: DatasetRef, name: str, parameters: dict[str, object]) -> FeatureStep:
    spec = AlgorithmSpec("projections", name, parameters)
    algorithm = spec.build()
    key = map_identity(spec, dataset.dimension)
    return FeatureStep(
        key=key,
        label=name,
        dimension=algorithm.output_dimension(dataset.dimension),
        **_taking(dataset),
        algorithm=spec,
    )


def _from_file(dataset: DatasetRef, name: str, file: str, parameters: dict[str, object]) -> FeatureStep:
    spec, path = AlgorithmSpec("encoders", name, parameters), Path(file).expanduser()
    encoder = read_encoder(spec, path, dataset.dimension)
    return FeatureStep(
        key=encoder.key,
        label=name,
        dimension=encoder.dimension,
        **_taking(dataset),
        algorithm=spec,
        # Whoever makes the map may stand in another folder.
        file=str(path.absolute()),
        outside=encoder.outside,
    )


def _from_public_rows(dataset: DatasetRef, config: AlgorithmSettings, before: Sequence[FeatureStep]) -> FeatureStep:
    public = find_dataset(str(config.public_dataset))
    registered = find_dataset(dataset.name)
    if public.private:
        raise RefusedError(
            f"{public.name} is private, and a map learnt from its rows would have to be charged; give a public set"
        )
    if public.version == registered.version or public.account == registered.account:
        raise RefusedError(
            f"{public.name} holds the training rows, and a map learnt from them is not public; give a data set of "
            "other rows"
        )
    if public.synthesis and registered.private:
        require_same_population(public, registered)
    if public.dimension != registered.dimension:
        raise InputError(
            f"{public.name} has {public.dimension} features per row and {registered.name} {registered.dimension}; "
            "public rows must have the features of the training rows"
        )
    parameters = parameters_of(config, "public")
    learner = construct(PublicRowsWhitening, "public", parameters)
    if learner.head > 0 and public.classes != registered.classes:
        raise InputError(
            f"public.head needs a head trained on {public.name}, whose classes differ from those of "
            f"{registered.name}; omit it"
        )
    dimension = before[-1].dimension if before else dataset.dimension
    key = identity(
        map=["public-rows", parameters, dataset.normalisation, dimension],
        rows=public.version,
        before=[step.key for step in before],
        code=code_version(PublicRowsWhitening),
    )
    return FeatureStep(
        key=key,
        label="public-rows",
        dimension=learner.output_dimension(dimension, public.rows, max(len(public.classes), 1)),
        **_taking(dataset),
        before=tuple(step.key for step in before),
        algorithm=AlgorithmSpec("", "public", parameters),
        public=require_source(plan_normalisation(public, dataset.normalisation)),
        outside=coded("public-rows", name=public.name),
    )


def _taking(dataset: DatasetRef) -> dict[str, int]:
    return {"takes": dataset.dimension, "classes": max(len(dataset.classes), 1)}
