"""Sentences of guarantees by their codes: what is assumed, why nothing is proved, what a paper's proof lacks.

A guarantee holds codes, never sentences. The code, with the values that its sentence names, is what manifests, exports
and the ledger store and compare: ``honest-parties?honest=3``. The sentence is looked up where it is shown
(:func:`sentence`). Identities do not depend on this module (:mod:`tasks.planning.identity`), so a sentence may be
reworded and no release is charged again. What a code means never changes: another assumption has another code.
"""

from collections.abc import Mapping
from string import Formatter
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, urlencode

from dpalgos.parameters import ParameterError

_SENTENCES: dict[str, str] = {
    # Assumptions.
    "arithmetic-of-solvers": (
        "IEEE arithmetic and elementary functions that are accurate to 2^-50, for the solver's certificate"
    ),
    "secret-candidates": "only the curator knows which candidates were drawn, and the results that are not released",
    "secret-participation": "only the party that holds the rows knows which of them take part in a step",
    "honest-parties": "at least {honest} parties are honest, of whom one may be curious",
    "record-in-one-night": (
        "a record takes part in one night of the horizon, and how many records arrive in which night is public"
    ),
    "person-in-one-night": (
        "a person takes part in one night of the horizon, and how many people arrive in which night is public"
    ),
    "record-in-nights": (
        "a record takes part in up to {nights} nights of the horizon, any two at least {separation} apart, and how "
        "many records arrive in which night is public"
    ),
    "person-in-nights": (
        "a person takes part in up to {nights} nights of the horizon, any two at least {separation} apart, and how "
        "many people arrive in which night is public"
    ),
    "colluders": (
        "at most {colluders} of {parties} parties share their knowledge with each other and the server; a sum is "
        "released only if it has the contributions of at least {quorum} parties; the noise of any {unknown_shares} of "
        "them carries the whole guarantee, so it holds against the colluders and against any single party that knows "
        "its own share"
    ),
    "one-survivor-set": (
        "parties and server follow the protocol (honest but curious): the server cannot have two survivor sets "
        "unmasked even if it tries"
    ),
    "same-survivor-set": (
        "parties and server follow the protocol (honest but curious): in particular the server asks every party to "
        "unmask the same survivor set"
    ),
    "secure-primitives": (
        "X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 are secure, and messages between parties and server are "
        "authenticated"
    ),
    "order-of-graph": "dropouts and colluders do not depend on the graph's random order",
    "deadline": (
        "for any rows, an attempt or the preparation of its rows takes longer than {seconds} s with probability "
        "at most {miss}"
    ),
    "after-deadline": "the time after the deadline does not depend on the rows",
    # What is outside.
    "public-rows": "the public rows of {name}, used to centre and whiten features, are not protected",
    "rows-of-encoder": (
        "the rows that the encoder (ONNX file, SHA-256 {digest}…) was trained on are outside the guarantee: it "
        "protects only the rows registered here"
    ),
    # Why nothing is proved.
    "no-noise": "no noise is drawn",
    "lost-ledger": "the plans of a lost ledger",
    "slack-of-groups": (
        "the loss that occurs with a small probability (by sampling, or by a missed deadline) is bounded for one row, "
        "and nothing is proved for {rows} rows or a relation that counts as {rows} rows; choose an algorithm that uses "
        "all rows, no --deadline, one row per person, or the account's own --neighbours"
    ),
    "delta-of-groups": "delta {delta} becomes 1 or more for {rows} rows per person",
    "unbounded-deadline-misses": "no bound on what deadline misses of probability {probability} reveal",
    "revealing-deadline-misses": (
        "deadline misses of probability {probability} may reveal everything at such an epsilon"
    ),
    "few-parties-for-laplace": (
        "the proof for Laplace noise on each coordinate needs {needed} parties (number of classifiers times "
        "sqrt(dimension)), and there are {parties}"
    ),
    # Flaws of published proofs.
    "covariance-moves-by-sqrt-2": (
        "Lemma 4.1 says that the covariance changes by at most 1. Replacing a row changes it by up to "
        "sqrt(2). In addition, sigma = sqrt(2 ln(1.25/delta))/epsilon_1 is proved for epsilon_1 < 1 only."
    ),
    "rows-move-by-2": (
        "The noise is calibrated to a change of 1. Replacing a row changes X by up to 2. In addition, the paper then "
        "trains on the raw rows again."
    ),
    "one-sided-support": (
        "Wishart noise is positive semidefinite, so its support is one-sided. Replacing a zero row by a unit row makes "
        "a share 1 - exp(-epsilon/3) of the outputs impossible: 28 % at epsilon = 1."
    ),
    "sampler-stopped": (
        "The proof holds for the exact distribution. A stopped Gibbs sampler does not have it, "
        "and no bound on the difference is known."
    ),
    "classifiers-not-composed": "Ten one-vs-rest classifiers are ten releases, and the paper counts one.",
    "classifiers-and-covariance": (
        "Ten one-vs-rest classifiers are ten releases, and the paper counts one. In addition, the covariance's "
        "sensitivity under replace-one is sqrt(2), not 1."
    ),
    "classifiers-and-minimiser": (
        "Ten one-vs-rest classifiers read the same rows. They spend epsilon_2 each, without composition. In addition, "
        "the theorem cited needs a twice differentiable loss and the exact minimiser. It has neither."
    ),
    "trained-without-noise": (
        "The SVM is trained on the rows without noise. The released weights are a function of them."
    ),
    "exact-basis-and-bias": "The basis and the bias are released exactly, without noise.",
    "exact-bias-and-basis-before": ("The bias and the basis are released exactly. Both are functions of the rows."),
    "laplace-for-l2": (
        "The minimiser moves by 2G/(n lambda) in the l2 norm. Laplace noise on each of d coordinates protects a change "
        "in the l1 norm. That change can be sqrt(d) times as large, and so can epsilon."
    ),
    "laplace-for-l2-of-parties": (
        "The proof uses the l2 bound on the minimisers' change where it needs one in l1. It holds only for at least m "
        "sqrt(p) parties, with m classifiers of p weights each. With so many parties, noise for the smallest party is "
        "enough for the mean."
    ),
    "iterates-not-composed": (
        "T iterates are exchanged. Each is a release of the same rows, and the paper counts one. The dual variables "
        "carry exact iterates from step to step. A step therefore moves by more than its noise is calibrated to."
    ),
    "span-of-support-vectors": (
        "The released vector is a combination of the support vectors. It lies in their span, which changes with a row. "
        "The noise is scaled by errors that are functions of the rows. If the error is zero, there is no noise. The "
        "bias has no noise. One changed row changes many dual variables, not one by C."
    ),
    "pairs-name-records": (
        "If SMO converges, it gives the non-private SVM, in any order of the pairs. The selected pairs identify "
        "records: in a data set without the record their probability is 0. Thousands of selections cost epsilon each, "
        "and the paper counts epsilon once."
    ),
}

SENTENCES: Mapping[str, str] = MappingProxyType(_SENTENCES)
"""All sentences by their codes, with the places of their values."""


def define(code: str, text: str) -> None:
    """Add a sentence: for algorithms in separate packages, whose codes begin with the package's name.

    Parameters
    ----------
    code : str
        Letters, digits and ``-``; new.
    text : str
        The sentence, with the places of its values in braces.

    Raises
    ------
    ParameterError
        If the code is another sentence's, or cannot be one.
    """
    if not code or quote(code, safe="") != code:
        raise ParameterError(f"{code!r} cannot be the code of a sentence; use letters, digits and '-'")
    if _SENTENCES.setdefault(code, text) != text:
        raise ParameterError(f"{code!r} is the code of another sentence; choose one that begins with your package")


def coded(code: str, **values: object) -> str:
    """Return the code of a sentence with the values that it names, as guarantees store and compare it.

    Parameters
    ----------
    code : str
    **values : object
        Each that the sentence has a place for.

    Raises
    ------
    ParameterError
        If there is no such code, or its sentence names other values.
    """
    if code not in _SENTENCES:
        raise ParameterError(f"no sentence has the code {code!r}; define it in dpalgos.sentences")
    named = {name for _, name, _, _ in Formatter().parse(_SENTENCES[code]) if name is not None}
    if named != values.keys():
        raise ParameterError(f"the sentence {code!r} needs the values {sorted(named)}, and {sorted(values)} are given")
    return code + ("?" + urlencode(sorted(values.items())) if values else "")


def sentence(code: str) -> str:
    """Return the sentence of a code and its values; what is unknown here is shown as it is.

    Parameters
    ----------
    code : str
        As of :func:`coded`, perhaps of another version or of a package that is not installed.
    """
    name, _, values = code.partition("?")
    try:
        return _SENTENCES[name].format_map(dict(parse_qsl(values, keep_blank_values=True, strict_parsing=bool(values))))
    except (KeyError, ValueError):
        return code
