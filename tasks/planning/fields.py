"""How the mathematics' own types travel through Pydantic: as they are in memory, as plain JSON where one is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from pydantic import PlainSerializer, PlainValidator

from dpalgos.guarantees import Claim, Loss, Neighbours, Setting, loss_from_json, loss_to_json
from dpalgos.registry import AlgorithmSpec

Json = dict[str, object]
_T = TypeVar("_T")


def _either(kind: type[_T] | object, read: Callable[[Json], _T]) -> PlainValidator:
    def validate(value: object) -> _T:
        if isinstance(value, Mapping):
            return read(dict(value))
        if not isinstance(value, kind):  # type: ignore[arg-type]  # from JSON, checked by the class
            raise ValueError(f"{value!r} is no {kind} and no JSON of one")
        return value

    return PlainValidator(validate)


def _algorithm(data: Json) -> AlgorithmSpec:
    # JSON knows no tuples; a specification's own are settings of trust models.
    parameters = data["parameters"]
    assert isinstance(parameters, Mapping)
    return AlgorithmSpec(str(data["kind"]), str(data["name"]), dict(parameters))


def _algorithm_json(spec: AlgorithmSpec) -> Json:
    return {"kind": spec.kind, "name": spec.name, "parameters": dict(spec.parameters)}


def _setting(data: Json) -> Setting:
    sizes, neighbours = data.pop("sizes"), data.pop("neighbours")
    assert isinstance(sizes, (list, tuple))
    return Setting(sizes=tuple(sizes), neighbours=Neighbours(str(neighbours)), **data)  # type: ignore[arg-type]  # from JSON, checked by the class


def _setting_json(setting: Setting) -> Json:
    return {**dataclasses.asdict(setting), "sizes": list(setting.sizes)}


def _claim(data: Json) -> Claim:
    return Claim(**data)  # type: ignore[arg-type]  # from JSON, checked by the class


LossField = Annotated[Loss, _either(Loss, loss_from_json), PlainSerializer(loss_to_json)]
AlgorithmField = Annotated[AlgorithmSpec, _either(AlgorithmSpec, _algorithm), PlainSerializer(_algorithm_json)]
SettingField = Annotated[Setting, _either(Setting, _setting), PlainSerializer(_setting_json)]
ClaimField = Annotated[Claim, _either(Claim, _claim), PlainSerializer(dataclasses.asdict)]
