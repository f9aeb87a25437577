"""Cast values of any type to strings, as DataFusion writes them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.verbs.expressions.sql.datafusion_calls import compute
from lance_core.verbs.expressions.sql.typed import Typed, call, literal
from lance_core.verbs.expressions.sql.zones import check_parts


def words(value: Typed, kind: pa.DataType) -> Typed:
    """The value as a string, as DataFusion writes it: 1.0, NaN, 2020-01-01T00:00:00."""
    from_type = value.type
    if pa.types.is_null(from_type):
        return literal(None, kind)
    if pa.types.is_floating(from_type):
        short = pa.types.is_float16(from_type)
        plain = Typed((value.to(pa.float32()) if short else value).expression.cast(pa.string()), pa.string())
        whole = r"\1" if short else r"\1.0"
        for pattern, replacement in ((r"^(-?\d+)$", whole), (r"e\+?0*", "e"), (r"e-0+", "e-"), ("nan", "NaN")):
            plain = _replace(plain, pattern, replacement)
        return plain.to(kind)
    if pa.types.is_duration(from_type):
        return compute("CAST", "arrow_cast({}, 'Utf8')", [value]).to(kind)
    if pa.types.is_date64(from_type):
        return words(value.to(pa.timestamp("ms")), kind)
    if pa.types.is_timestamp(from_type):
        check_parts(from_type, "the string")
        plain = _shorten(call("strftime", [value], pa.string(), pc.StrftimeOptions("%Y-%m-%dT%H:%M:%S")))
        if from_type.tz == "UTC":
            plain = _replace(plain, "$", "Z")
        elif from_type.tz:
            zone = call("strftime", [value], pa.string(), pc.StrftimeOptions("%z"))
            parts = [plain, _replace(zone, r"(\d\d)$", r":\1"), literal("", pa.string())]
            plain = call("binary_join_element_wise", parts, pa.string())
        return plain.to(kind)
    if pa.types.is_nested(from_type) or pa.types.is_binary(from_type) or pa.types.is_large_binary(from_type):
        return Typed(value.expression.cast(kind), kind)
    plain = Typed(value.expression.cast(pa.string()), pa.string())
    return (_shorten(plain) if pa.types.is_time(from_type) else plain).to(kind)


def _shorten(time: Typed) -> Typed:
    """The string of a time with no, three, six or nine digits of a second, as many as it takes."""
    for pattern, replacement in ((r"\.0+$", ""), (r"(\.\d{6})000$", r"\1"), (r"(\.\d{3})000$", r"\1")):
        time = _replace(time, pattern, replacement)
    return time


def _replace(value: Typed, pattern: str, replacement: str) -> Typed:
    options = pc.ReplaceSubstringOptions(pattern=pattern, replacement=replacement, max_replacements=1)
    return call("replace_substring_regex", [value], value.type, options)
