"""How the mathematics' own types travel through Pydantic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, PlainSerializer, PlainValidator
from pydantic_core import CoreSchema, core_schema

from dpalgos.errors import ParameterError
from dpalgos.guarantees import RELATIONS, Claim, Loss, Neighbours, Setting, loss_from_json, loss_to_json
from dpalgos.registry import AlgorithmSpec


@dataclass(frozen=True, slots=True)
class Offered:
    """Annotates :class:`~dpalgos.guarantees.Neighbours`: what forms and help offer; others are refused with a reason.

    Parameters
    ----------
    choices : tuple of str
    """

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {"type": "string", "enum": list(self.choices)}

    def _read(self, given: object) -> Neighbours:
        if given not in set(Neighbours):
            raise ParameterError(f"{given!r} is none of {', '.join(self.choices)}")
        return Neighbours(str(given)).in_force()


RelationInForce = Annotated[Neighbours, Offered(tuple(str(relation) for relation in RELATIONS))]


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
    given = {**dataclasses.asdict(setting), "sizes": list(setting.sizes)}
    if setting.rows_per_person == 1:
        # Plans of rows keep the identity that they had before people were known.
        del given["rows_per_person"]
    return given


def _claim(data: Json) -> Claim:
    return Claim(**data)  # type: ignore[arg-type]  # from JSON, checked by the class


LossField = Annotated[Loss, _either(Loss, loss_from_json), PlainSerializer(loss_to_json)]
AlgorithmField = Annotated[AlgorithmSpec, _either(AlgorithmSpec, _algorithm), PlainSerializer(_algorithm_json)]
SettingField = Annotated[Setting, _either(Setting, _setting), PlainSerializer(_setting_json)]
ClaimField = Annotated[Claim, _either(Claim, _claim), PlainSerializer(dataclasses.asdict)]
