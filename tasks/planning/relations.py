"""The neighbouring relation as somebody asks for it: one of those that can be in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from dpalgos.errors import ParameterError
from dpalgos.guarantees import RELATIONS, Neighbours


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
