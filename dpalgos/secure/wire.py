"""One canonical byte form for frozen dataclasses: equal values have equal bytes, and nothing else parses."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from dpalgos.errors import ParameterError
from dpalgos.secure.primitives import MessageError

_MAGIC = b"usa1"
_LIMIT = 2**63


class _Codec(NamedTuple):
    write: Callable[[Any, list[bytes]], None]
    read: Callable[[_Reader], Any]


class _Reader:
    """Takes bytes from the front; running out is an error."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if len(piece) < count:
            raise MessageError(f"message ends early: {count} bytes wanted at {self.position}, {len(piece)} left")
        self.position += count
        return piece

    def number(self) -> int:
        value = int.from_bytes(self.take(8), "big")
        if value >= _LIMIT:
            raise MessageError(f"number {value} is not below 2^63")
        return value

    def left(self) -> int:
        return len(self.data) - self.position


def _write_number(value: int, parts: list[bytes]) -> None:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise MessageError(f"{value!r} is not a whole number from 0 to 2^63 - 1")
    parts.append(value.to_bytes(8, "big"))


def _write_bytes(value: bytes, parts: list[bytes]) -> None:
    if type(value) is not bytes:
        raise MessageError(f"a {type(value).__name__} stands where bytes belong")
    _write_number(len(value), parts)
    parts.append(value)


def _write_text(value: str, parts: list[bytes]) -> None:
    if type(value) is not str:
        raise MessageError(f"a {type(value).__name__} stands where text belongs")
    try:
        _write_bytes(value.encode(), parts)
    except UnicodeEncodeError as error:
        raise MessageError("text is not valid Unicode") from error


def _read_text(reader: _Reader) -> str:
    try:
        return reader.take(reader.number()).decode()
    except UnicodeDecodeError as error:
        raise MessageError("text is not valid UTF-8") from error


def _sequence(item: _Codec) -> _Codec:
    def write(values: tuple[Any, ...], parts: list[bytes]) -> None:
        if type(values) is not tuple:
            raise MessageError(f"a {type(values).__name__} stands where a tuple belongs")
        _write_number(len(values), parts)
        for value in values:
            item.write(value, parts)

    def read(reader: _Reader) -> tuple[Any, ...]:
        count = reader.number()
        # Every item takes at least a byte, so a lying count cannot ask for more memory than the message has.
        if count > reader.left():
            raise MessageError(f"{count} items are announced, {reader.left()} bytes left")
        return tuple(item.read(reader) for _ in range(count))

    return _Codec(write, read)


def _optional(item: _Codec) -> _Codec:
    def write(value: Any, parts: list[bytes]) -> None:
        parts.append(b"\0" if value is None else b"\1")
        if value is not None:
            item.write(value, parts)

    def read(reader: _Reader) -> Any:
        flag = reader.take(1)
        if flag not in (b"\0", b"\1"):
            raise MessageError(f"presence flag is {flag!r}")
        return item.read(reader) if flag == b"\1" else None

    return _Codec(write, read)


def _nested(cls: type[Wire]) -> _Codec:
    def write(value: Any, parts: list[bytes]) -> None:
        if type(value) is not cls:
            raise MessageError(f"a {type(value).__name__} stands where a {cls.__name__} belongs")
        for name, codec in _fields(cls):
            codec.write(getattr(value, name), parts)

    def read(reader: _Reader) -> Any:
        return cls(**{name: codec.read(reader) for name, codec in _fields(cls)})

    return _Codec(write, read)


_PLAIN: dict[Any, _Codec] = {
    int: _Codec(_write_number, _Reader.number),
    bytes: _Codec(_write_bytes, lambda reader: reader.take(reader.number())),
    str: _Codec(_write_text, _read_text),
}


def _codec(hint: Any) -> _Codec:
    if hint in _PLAIN:
        return _PLAIN[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return _sequence(_codec(arguments[0]))
    if isinstance(hint, types.UnionType):
        return _optional(_codec(arguments[0]))
    return _nested(hint)


_LAYOUTS: dict[type[Wire], tuple[tuple[str, _Codec], ...]] = {}


def _fields(cls: type[Wire]) -> tuple[tuple[str, _Codec], ...]:
    if cls not in _LAYOUTS:
        hints = typing.get_type_hints(cls)
        # Every kind of message is a dataclass; its fields are only known once the class statement is over.
        names = (field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # every kind is a dataclass
        _LAYOUTS[cls] = tuple((name, _codec(hints[name])) for name in names)
    return _LAYOUTS[cls]


class Wire:
    """A frozen dataclass with a canonical byte form.

    Fields are whole numbers below 2^63, text, bytes, other such dataclasses, tuples of these, or one of these or
    None. :meth:`decode` is strict: it accepts exactly the bytes that :meth:`encode` makes (no trailing bytes, no
    second spelling of a value) and then runs the class's own checks, so that a parsed message is a checked one.
    """

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the canonical bytes.

        Raises
        ------
        MessageError
            If a field holds a value of another type.
        """
        parts = [_MAGIC]
        _write_text(type(self).__name__, parts)
        _nested(type(self)).write(self, parts)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message of this kind back.

        Raises
        ------
        MessageError
            If the bytes are not the canonical form of such a message, or its own checks fail.
        """
        reader = _Reader(data)
        if reader.take(len(_MAGIC)) != _MAGIC:
            raise MessageError("not a message of this protocol's version")
        kind = _read_text(reader)
        if kind != cls.__name__:
            raise MessageError(f"a {kind[:40]!r} where a {cls.__name__} belongs")
        try:
            message: Self = _nested(cls).read(reader)
        except ParameterError as error:
            raise MessageError(str(error)) from error
        if reader.left():
            raise MessageError(f"{reader.left()} bytes follow the end of the message")
        return message
