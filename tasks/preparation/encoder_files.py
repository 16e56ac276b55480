"""Files of encoders: read within bounds, and identified by what they hold."""

from dataclasses import dataclass
from pathlib import Path

from dpalgos.features.public_map import FileMap, RowFeatures
from dpalgos.registry import AlgorithmSpec, construct, lookup
from storage.errors import InputError
from storage.releases import ReleaseStore
from tasks.planning.identity import code_version, identity


@dataclass(frozen=True, slots=True)
class EncoderFile:
    """An encoder as its file holds it, for rows of ``takes`` features.

    Attributes
    ----------
    encoder : FileMap
    features : RowFeatures
        What the file holds, before it is finished.
    takes : int
    key : str
        The map's identity: of the file, the parameters and the code that applies them.
    outside : str
        Whose rows the guarantee leaves out because of the file, as a code (:mod:`dpalgos.sentences`).
    """

    encoder: FileMap
    features: RowFeatures
    takes: int
    key: str
    outside: str

    @property
    def dimension(self) -> int:
        """Features per row of the finished map."""
        return self.encoder.output_dimension(self.features, self.takes)

    def finished(self) -> RowFeatures:
        """Return the map: what the parameters make of the file."""
        return self.encoder.finished(self.features, self.takes)


def read_encoder(spec: AlgorithmSpec, path: Path, takes: int) -> EncoderFile:
    """Return the encoder that a file holds; nothing is stored.

    Parameters
    ----------
    spec : AlgorithmSpec
        Of kind ``encoders``.
    path : Path
    takes : int
        Features of a row that it is shown.

    Raises
    ------
    InputError
        If there is no such file, or it is larger than such an encoder's may be.
    ParameterError
        If what the file says does not fit the rows.
    """
    encoder: FileMap = construct(lookup(spec.kind, spec.name), spec.name, spec.parameters)
    content = _content(path, encoder.largest)
    features = encoder.read(content, takes)
    # The map's arrays hold the file, so that the outside code's digest and the identity are of the same bytes. What is
    # made of it on the way to the finished map is said by the parameters.
    digest = ReleaseStore.digest_of({}, features.arrays())
    key = identity(map=[spec.name, dict(spec.parameters), digest, takes], code=code_version(*spec.classes()))
    return EncoderFile(encoder, features, takes, key, encoder.outside(content))


def _content(path: Path, largest: int) -> bytes:
    try:
        if not path.is_file():
            raise InputError(f"file {path} does not exist: give the encoder's file, as in --features onnx:encoder.onnx")
        if (size := path.stat().st_size) > largest:
            raise InputError(f"{path} has {size} bytes; an encoder's file has at most {largest}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
