"""Facts under their names in earlier versions, as views of the codec and of the spreads.

Programs that set ``info.alphabet`` and stored models of formats 1 and 2 keep working.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bfn.core.codec import CODEC, ClassNames, Codec, Scaling, join_codecs
from bfn.core.errors import UserError
from bfn.core.info import NOTHING, SPREADS, ModelInfo, Spread, View
from bfn.data.table_columns import TableCodec, TableColumns
from bfn.data.tokenizers import Alphabet, Text, Tokenizer

C = TypeVar("C", bound=Codec)


def _codecs(info: ModelInfo, kind: type[C]) -> dict[str, C]:
    """Return the codecs of one class, by part."""
    codec = info[CODEC]
    return {} if codec is None else {name: own for name, own in codec.by_part.items() if isinstance(own, kind)}


def _put_codecs(info: ModelInfo, codecs: Mapping[str, Codec]) -> None:
    """Set the codecs of some parts."""
    known = info[CODEC]
    joined = {**({} if known is None else known.by_part), **codecs}
    info[CODEC] = join_codecs(joined) if joined else None


def _text(info: ModelInfo) -> Tokenizer | None:
    """Return the tokenizer of a model of text."""
    own = _codecs(info, Text).get("")
    return None if own is None else own.tokenizer


def _put_text(info: ModelInfo, tokenizer: Tokenizer | None) -> None:
    """Set the tokenizer of a model of text."""
    known = _text(info)
    if known is not None and tokenizer is not None and known != tokenizer:
        symbols = next((own.symbols for own in (known, tokenizer) if isinstance(own, Alphabet)), "")
        raise UserError(f"alphabet {symbols!r} beside a tokenizer: a text is cut in one way; leave one out")
    if tokenizer is not None:
        _put_codecs(info, {"": Text(tokenizer)})


def _alphabet(info: ModelInfo) -> str | None:
    """Return the symbols of a model of characters."""
    tokenizer = _text(info)
    return tokenizer.symbols if isinstance(tokenizer, Alphabet) else None


def _put_alphabet(info: ModelInfo, symbols: str | None) -> None:
    """Set the symbols of a model of characters."""
    if symbols is not None:
        _put_text(info, Alphabet(symbols))


def _tokenizer(info: ModelInfo) -> Tokenizer | None:
    """Return the tokenizer of a model of text, unless its tokens are characters."""
    tokenizer = _text(info)
    return None if isinstance(tokenizer, Alphabet) else tokenizer


def _columns(info: ModelInfo) -> TableColumns | None:
    """Return the columns of a model of tables."""
    codec = info[CODEC]
    return codec.columns if isinstance(codec, TableCodec) else None


def _put_columns(info: ModelInfo, columns: TableColumns | None) -> None:
    """Set the columns of a model of tables."""
    info[CODEC] = None if columns is None else TableCodec(columns)


def _put_spreads(info: ModelInfo, spreads: Mapping[str, Spread]) -> None:
    """Set the scale of some parts."""
    known = info[SPREADS]
    info[SPREADS] = {**known, **spreads}


def _put_spread(info: ModelInfo, spread: Spread | None) -> None:
    """Set the scale of data of one part."""
    _put_spreads(info, {} if spread is None else {"": spread})


def _by_part(name: str, type_: Any, kind: type[C], read: Callable[[C], Any], make: Callable[[Any], C]) -> View[Any]:
    """Make a view of the codecs of one class, by part."""

    def get(info: ModelInfo) -> Any:
        return {part: read(own) for part, own in _codecs(info, kind).items() if part or name != "part_tokenizers"}

    def put(info: ModelInfo, values: Mapping[str, Any]) -> None:
        _put_codecs(info, {part: make(value) for part, value in values.items()})

    return View(name, type_, NOTHING, get=get, put=put)


ALPHABET: View[str | None] = View("alphabet", str | None, None, get=_alphabet, put=_put_alphabet)
"""Symbols of a model of text, one for each class."""

TOKENIZER: View[Tokenizer | None] = View("tokenizer", Tokenizer | None, None, get=_tokenizer, put=_put_text)
"""Tokenizer of a model of text, unless its tokens are characters."""

TEXT_TOKENIZER: View[Tokenizer | None] = View("text_tokenizer", Tokenizer | None, None, get=_text, put=_put_text)
"""Tokenizer of a model of text."""

PART_TOKENIZERS = _by_part("part_tokenizers", Mapping[str, Tokenizer], Text, lambda codec: codec.tokenizer, Text)
"""Tokenizers of parts that are text."""

PART_CLASSES = _by_part(
    "part_classes", Mapping[str, tuple[str, ...]], ClassNames, lambda codec: codec.names, ClassNames
)
"""Names of the classes of parts."""

SCALING = _by_part("scaling", Mapping[str, Scaling], Scaling, lambda codec: codec, lambda codec: codec)
"""Scalings of parts that are numbers."""

COLUMNS: View[TableColumns | None] = View("columns", TableColumns | None, None, get=_columns, put=_put_columns)
"""Columns of a table."""

SPREAD: View[Spread | None] = View(
    "spread", Spread | None, None, get=lambda info: info[SPREADS].get(""), put=_put_spread
)
"""Scale of data of one part."""

PART_SPREADS: View[Mapping[str, Spread]] = View(
    "part_spreads",
    Mapping[str, Spread],
    NOTHING,
    get=lambda info: {name: own for name, own in info[SPREADS].items() if name},
    put=_put_spreads,
)
"""Scale of the parts of joint data."""
