"""Random SQL conditions over a table with a column of every type that both libraries know."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa

ROWS = 40
NAN, INF = float("nan"), float("inf")
_INTS = {f"{sign}{bits}": (sign == "u", bits) for sign in "iu" for bits in (8, 16, 32, 64)}
_MOMENTS = [
    dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 1, 2, 3, 456789), dt.datetime(1969, 12, 31, 23, 59, 59, 500000),
    dt.datetime(2021, 5, 6), dt.datetime(2024, 2, 29, 12), dt.datetime(1900, 1, 1), dt.datetime(1970, 1, 1),
    dt.datetime(2020, 3, 8, 7, 30), dt.datetime(2262, 4, 11, 23, 47, 16), None,
]  # fmt: skip
_TEXTS = ["abc", "A_c%", None, "", "Zürich", "foo bar", "a", "b", "7", "-1.5", "true", "2020-01-01", "ß", "a\\b", "aXb"]
_DAYS = [None if one is None else one.date() for one in _MOMENTS]
_TIMES = [dt.time(0), dt.time(1, 2, 3), None, dt.time(23, 59, 59), dt.time(12)]


def _int_pool(unsigned: bool, bits: int) -> list[int | None]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return [low, high, 0, 1, 2, 5, 7, 100, None, high - 1, *([] if unsigned else [-1, -7])]


_FLOATS = [NAN, -0.0, 0.0, INF, -INF, 0.1, 1.5, -2.5, None, 7.0, 100.0, 1.0]
_POOLS: dict[str, tuple[list, pa.DataType]] = {
    **{
        name: (_int_pool(unsigned, bits), getattr(pa, f"{'u' if unsigned else ''}int{bits}")())
        for name, (unsigned, bits) in _INTS.items()
    },
    "f16": (_FLOATS, pa.float16()),
    "f32": (_FLOATS, pa.float32()),
    "f64": (_FLOATS, pa.float64()),
    "dec": ([None if x is None else Decimal(x) for x in ("1.50", "-2.25", "0", None, "99999999.99", "7", "100", "0.10")],
            pa.decimal128(10, 2)),
    "big": ([None if x is None else Decimal(x) for x in ("1.5", "-2.25", "0", None, "9" * 30, "7", "0.1")],
            pa.decimal256(50, 5)),
    "b": ([True, False, None], pa.bool_()),
    "s": (_TEXTS, pa.string()),
    "ls": (_TEXTS, pa.large_string()),
    "bin": ([b"abc", b"", None, b"\x00\xff", b"a"], pa.binary()),
    "lbin": ([b"abc", b"", None, b"\x00\xff", b"a"], pa.large_binary()),
    "fsb": ([b"abc", b"\x00\x00\x00", None, b"\xff\xff\xff"], pa.binary(3)),
    "d32": (_DAYS, pa.date32()),
    "d64": (_DAYS, pa.date64()),
    **{f"ts_{unit}": (_MOMENTS, pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    "utc": (_MOMENTS, pa.timestamp("us", "UTC")),
    "ny": (_MOMENTS, pa.timestamp("ms", "America/New_York")),
    "t32_s": (_TIMES, pa.time32("s")),
    "t32_ms": (_TIMES, pa.time32("ms")),
    "t64_us": (_TIMES, pa.time64("us")),
    "t64_ns": (_TIMES, pa.time64("ns")),
    **{f"du_{unit}": ([0, 1, -1, 1000, 60_000_000, None], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")},
    "dict": (["a", "b", None, "abc"], pa.dictionary(pa.int32(), pa.string())),
    "li": ([[1, 2], [], None, [3, None], [4], [5, 6, 7]], pa.list_(pa.int32())),
    "lstr": ([["a", "b"], [], None, ["c", None], ["abc"]], pa.list_(pa.string())),
    "fsl": ([[1.0, 2.0], [0.0, NAN], None, [-0.0, 7.0]], pa.list_(pa.float32(), 2)),
    "st": (
        [
            {"i": 1, "s": "abc", "n": {"f": 1.5, "t": dt.datetime(2020, 1, 1), "d": Decimal("1.50")}},
            {"i": None, "s": "", "n": None},
            None,
            {"i": 7, "s": None, "n": {"f": NAN, "t": None, "d": None}},
            {"i": -1, "s": "b", "n": {"f": -0.0, "t": dt.datetime(1969, 12, 31), "d": Decimal("-2.25")}},
        ],
        pa.struct([
            ("i", pa.int32()),
            ("s", pa.string()),
            ("n", pa.struct([("f", pa.float64()), ("t", pa.timestamp("us")), ("d", pa.decimal128(10, 2))])),
        ]),
    ),
}  # fmt: skip


def _cut(value, kind):
    if isinstance(value, dt.datetime) and pa.types.is_timestamp(kind):
        return value.replace(
            microsecond={"s": 0, "ms": value.microsecond // 1000 * 1000}.get(kind.unit, value.microsecond)
        )
    return value


def table() -> pa.Table:
    """The rows: values of each column's pool, in an order of its own."""
    some = random.Random(5)
    columns = {"id": pa.array(range(ROWS), pa.int64())}
    for name, (pool, kind) in _POOLS.items():
        values = [*pool, *(some.choice(pool) for _ in range(ROWS - len(pool)))]
        some.shuffle(values)
        columns[name] = pa.array([_cut(value, kind) for value in values], kind)
    return pa.table(columns)


INTEGERS = [*_INTS, "id", "st.i"]
FLOATS = ["f16", "f32", "f64", "st.n.f"]
DECIMALS = ["dec", "big", "st.n.d"]
TEXTS = ["s", "ls", "dict", "st.s"]
BYTES = ["bin", "lbin", "fsb"]
DATES = ["d32", "d64"]
ZONED = ["utc", "ny"]
STAMPS = ["ts_s", "ts_ms", "ts_us", "ts_ns", "st.n.t"]
TIMES = ["t32_s", "t32_ms", "t64_us", "t64_ns"]
SPANS = ["du_s", "du_ms", "du_us", "du_ns"]
LISTS = ["li", "lstr", "fsl"]
COMPARISONS = ["=", "<>", "!=", "<", "<=", ">", ">="]
_DATE_PARTS = [
    "year",
    "quarter",
    "month",
    "week",
    "day",
    "dow",
    "doy",
    "hour",
    "minute",
    "second",
    "epoch",
    "millisecond",
]
_SQL_TYPES = [
    "tinyint", "smallint", "int", "bigint", "tinyint unsigned", "smallint unsigned", "int unsigned", "bigint unsigned",
    "float", "double", "decimal(10,2)", "decimal(38,10)", "string", "varchar", "boolean", "date", "timestamp",
    "timestamp(3)", "binary",
]  # fmt: skip


_COLUMNS = {
    "number": [*INTEGERS, *FLOATS, *DECIMALS],
    "decimal": DECIMALS,
    "text": TEXTS,
    "moment": [*DATES, *STAMPS, *ZONED],
    "bytes": BYTES,
    "time": TIMES,
    "span": SPANS,
    "truth": ["b"],
}
_WEIGHTS = [
    "number",
    "number",
    "number",
    "text",
    "text",
    "moment",
    "moment",
    "bytes",
    "time",
    "span",
    "truth",
    "decimal",
]


def written(value) -> str:
    """A value as a literal."""
    if isinstance(value, dt.datetime):
        return f"timestamp '{value}'"
    if isinstance(value, dt.date):
        return f"date '{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def plain_columns() -> list[tuple[str, pa.DataType, list]]:
    """Columns whose values can be written as literals: name, type, values."""
    found = [(name, _POOLS[name][1], _POOLS[name][0]) for name in [*_INTS, "f64", "b", "s", "ls", "d32", "ts_us"]]
    found.append(("st.i", pa.int32(), [1, 7, -1]))
    plain = [
        (name, kind, [x for x in pool if x not in (None, INF, -INF) and str(x) != "nan"]) for name, kind, pool in found
    ]
    return [
        (name, kind, [x for x in pool if x != 2**64 - 1 and x != 2**64 - 2 and x != -(2**63)])
        for name, kind, pool in plain
    ]


class Conditions:
    """Makes conditions.

    Args:
        seed: Which ones.
        wild: Share of the parts that are of any type, whatever the place asks for.
    """

    def __init__(self, seed: int, wild: float = 0.03) -> None:
        self.random = random.Random(seed)
        self.wild = wild
        self._columns = _COLUMNS

    def one(self) -> str:
        """A condition."""
        return self._condition(self.random.choice((0, 0, 0, 1, 2)))

    def restrict(self, columns: list[str]) -> None:
        """Name these columns only, in simple conditions."""
        self._columns = {kind: [name for name in names if name in columns] for kind, names in _COLUMNS.items()}
        self._columns = {kind: names for kind, names in self._columns.items() if names}

    def simple(self) -> str:
        """Columns beside literals, joined by AND, OR and NOT."""
        one, other = (self._pick(self._simple, self._simple, self._in, self._literals_between) for _ in range(2))
        return self._of([one, one, f"NOT ({one})", f"({one}) AND ({other})", f"({one}) OR ({other})"])

    def _literals_between(self) -> str:
        kind = self._kind()
        return f"{self._column(kind)} {self._of(['', 'NOT '])}BETWEEN {self._literal(kind)} AND {self._literal(kind)}"

    def _pick(self, *makers):
        return self.random.choice(makers)()

    def _of(self, names):
        return self.random.choice(names)

    def _condition(self, depth: int) -> str:
        if depth > 0:
            return self._pick(
                lambda: f"({self._condition(depth - 1)}) AND ({self._condition(depth - 1)})",
                lambda: f"({self._condition(depth - 1)}) OR ({self._condition(depth - 1)})",
                lambda: f"NOT ({self._condition(depth - 1)})",
                lambda: (
                    f"({self._condition(depth - 1)}) IS {self._of(['', 'NOT '])}{self._of(['TRUE', 'FALSE', 'NULL'])}"
                ),
                lambda: (
                    f"CASE WHEN {self._condition(depth - 1)} THEN {self._condition(0)} ELSE {self._condition(0)} END"
                ),
            )
        return self._pick(
            self._compared, self._compared, self._compared, self._in, self._between, self._null, self._distinct,
            self._like, self._truth, self._simple, self._simple, self._at_the_edge, self._zoned,
        )  # fmt: skip

    def _kind(self):
        return self._of([kind for kind in _WEIGHTS if kind in self._columns])

    def _value(self, kind: str, depth: int = 1) -> str:
        if self.random.random() < self.wild:
            kind = self._kind()
        return getattr(self, f"_{kind}")(depth)

    def _literal(self, kind: str) -> str:
        if self.random.random() < 0.02:
            return "NULL"
        return getattr(self, f"_{kind}_literal")()

    def _side(self, kind: str) -> str:
        return self._literal(kind) if self.random.random() < 0.5 else self._value(kind)

    def _simple(self) -> str:
        """A column beside a literal, as most conditions are."""
        kind = self._kind()
        column, literal = self._column(kind), self._literal(kind)
        sides = (column, literal) if self.random.random() < 0.8 else (literal, column)
        return f"{sides[0]} {self._of(COMPARISONS)} {sides[1]}"

    def _compared(self) -> str:
        kind = self._kind()
        return f"{self._value(kind)} {self._of(COMPARISONS)} {self._side(kind)}"

    def _in(self) -> str:
        kind = self._kind()
        items = ", ".join(
            self._literal(kind) if self.random.random() < 0.85 else self._value(kind, 0)
            for _ in range(self.random.choice((1, 2, 3, 5)))
        )
        value = self._column(kind) if self.random.random() < 0.7 else self._value(kind)
        return f"{value} {self._of(['', 'NOT '])}IN ({items})"

    def _between(self) -> str:
        kind = self._kind()
        return f"{self._value(kind)} {self._of(['', 'NOT '])}BETWEEN {self._side(kind)} AND {self._side(kind)}"

    def _null(self) -> str:
        kind = self._kind()
        value = self._value(kind) if self.random.random() < 0.8 else self._of([*LISTS, "st", "st.n"])
        return f"{value} IS {self._of(['', 'NOT '])}NULL"

    def _distinct(self) -> str:
        kind = self._kind()
        return f"{self._value(kind)} IS {self._of(['', 'NOT '])}DISTINCT FROM {self._side(kind)}"

    def _like(self) -> str:
        pattern = self._of(["'a%'", "'%b%'", "'A\\_c\\%'", "'_b_'", "''", "'%'", "'Z_rich'", "'a\\\\b'", "s", "NULL"])
        return f"{self._value('text')} {self._of(['', 'NOT '])}{self._of(['LIKE', 'LIKE', 'ILIKE'])} {pattern}"

    def _truth_function(self) -> str:
        return self._pick(
            lambda: f"starts_with({self._value('text')}, {self._literal('text')})",
            lambda: f"ends_with({self._value('text')}, {self._side('text')})",
            lambda: f"contains({self._value('text')}, {self._side('text')})",
            lambda: (
                f"regexp_like({self._value('text', 0)}, '{self._of(['^a', 'b$', '[a-z]+', 'A', ''])}'{self._of(['', ', ' + chr(39) + 'i' + chr(39)])})"
            ),
            lambda: f"regexp_match({self._of(TEXTS)}, '{self._of(['^a', 'b$', '[a-z]+'])}')",
            lambda: f"isnan({self._of(FLOATS)})",
            lambda: f"iszero({self._of(FLOATS)})",
            lambda: f"is_valid({self._value(self._kind(), 0)})",
            lambda: (
                f"{self._of(['array_has', 'array_contains', 'list_has', 'list_contains'])}(li, {self._of(['1', '3', '4', 'NULL', '9'])})"
            ),
            lambda: f"array_has(lstr, {self._literal('text')})",
            lambda: (
                f"{self._of(['array_has_any', 'array_has_all', 'list_has_any'])}(lstr, [{self._literal('text')}, {self._literal('text')}])"
            ),
            lambda: f"{self._of(['array_has_any', 'array_has_all'])}(li, [1, {self._of('1234')}])",
            lambda: f"empty({self._of(['li', 'lstr'])})",
        )

    def _truth(self, depth: int = 1) -> str:
        if depth < 1:
            return "b"
        return self._pick(
            lambda: "b",
            lambda: f"(b IS {self._of(['', 'NOT '])}{self._of(['TRUE', 'FALSE', 'NULL', 'UNKNOWN'])})",
            self._truth_function, self._truth_function, self._truth_function,
        )  # fmt: skip

    def _truth_literal(self) -> str:
        return self._of(["true", "false", "TRUE", "'true'", "'f'"])

    def _column(self, kind: str) -> str:
        return self._of(self._columns[kind])

    # Numbers
    def _number_literal(self) -> str:
        return self._of([
            str(self.random.randrange(-10, 120)), "0", "1", "7", "100", "127", "128", "255", "256", "-128", "32767", "65535",
            "2147483647", "2147483648", "-2147483648", "9223372036854775807", "0.1", "1.5", "-2.5", "0.0", "-0.0", "1e2",
            "2.50", "100.0", "'7'", "1e400", "18446744073709551615", "-1", "0.15",
        ])  # fmt: skip

    def _at_the_edge(self) -> str:
        """A column beside the first or last value of a type."""
        name = self._of(INTEGERS)
        bits = self._of([8, 16, 32, 64])
        edge = self._of(
            [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 2**bits - 1, 2**bits, 2 ** (bits - 1), -(2 ** (bits - 1)) - 1]
        )
        return f"{name} {self._of(COMPARISONS)} {edge}"

    def _number(self, depth: int = 1) -> str:
        if depth < 1 or self.random.random() < 0.4:
            return self._column("number")
        inner = lambda: self._value("number", depth - 1)  # noqa: E731 - short
        exact = lambda: self._of([*INTEGERS, *INTEGERS, *DECIMALS])  # noqa: E731 - short
        return self._pick(
            lambda: f"({exact()} {self._of('+-*')} {self._of([exact(), self._number_literal()])})",
            lambda: f"abs({inner()} {self._of('+-*')} {self._of([inner(), self._number_literal()])})",
            lambda: f"({exact()} {self._of('/%')} {self._of(['2', '3', '-7', exact()])})",
            lambda: f"abs({inner()} {self._of('/%')} {self._of(['2', '0.5', inner()])})",
            lambda: f"({self._of(INTEGERS)} {self._of(['&', '|', '^', '<<', '>>'])} {self._of(['1', '3', '7'])})",
            lambda: f"(- {exact()})",
            lambda: f"abs({self._of(['signum', 'sqrt', 'cbrt', 'exp', 'ln', 'log10', 'log2', 'sin', 'cos', 'tan', 'asin', 'acos', 'atan', 'sinh', 'cosh', 'tanh', 'asinh', 'acosh', 'atanh', 'cot', 'degrees', 'radians', 'floor', 'ceil', 'round', 'trunc', 'sign'])}({inner()}))",
            lambda: f"{self._of(['abs', 'round', 'trunc', 'signum'])}({inner()})",
            lambda: f"{self._of(['round', 'trunc'])}({inner()}, {self._of(['0', '1', '2', '-1'])})",
            lambda: f"abs({self._of(['power', 'pow', 'atan2', 'log', 'nanvl'])}({inner()}, {self._of(['2', '0.5', inner()])}))",
            lambda: f"{self._of(['gcd', 'lcm'])}({self._of(INTEGERS)}, {self._of(['4', '6', self._of(INTEGERS)])})",
            lambda: f"{self._of(['coalesce', 'nullif', 'ifnull', 'nvl', 'greatest', 'least'])}({inner()}, {self._of([inner(), self._number_literal()])})",
            lambda: f"nvl2({inner()}, {inner()}, {inner()})",
            lambda: f"cast({inner()} as {self._of(_SQL_TYPES[:12])})",
            lambda: f"try_cast({self._of([inner(), self._of(TEXTS)])} as {self._of(_SQL_TYPES[:12])})",
            lambda: f"arrow_cast({inner()}, '{self._of(['Int32', 'UInt64', 'Float32', 'Float64', 'Int8'])}')",
            lambda: f"CASE WHEN {self._condition(0)} THEN {inner()} ELSE {inner()} END",
            lambda: f"CASE {self._of(INTEGERS)} WHEN 7 THEN {inner()} WHEN 1 THEN 2 END",
            lambda: f"{self._of(['length', 'char_length', 'character_length', 'octet_length', 'bit_length', 'ascii'])}({self._value('text', depth - 1)})",
            lambda: f"{self._of(['strpos', 'instr', 'levenshtein'])}({self._value('text', depth - 1)}, {self._literal('text')})",
            lambda: f"regexp_count({self._of(TEXTS)}, '[a-z]')",
            lambda: f"date_part('{self._of(_DATE_PARTS)}', {self._value('moment', 0)})",
            lambda: f"extract({self._of(_DATE_PARTS[:9])} from {self._value('moment', 0)})",
            lambda: f"to_unixtime({self._value('moment', 0)})",
            lambda: f"{self._of(['array_length', 'cardinality', 'list_length'])}({self._of(LISTS)})",
            lambda: f"{self._of(['array_max', 'array_min', 'list_max'])}(li)",
            lambda: f"li[{self._of(['1', '2', '-1', '0'])}]",
            lambda: f"array_element({self._of(['li', 'fsl'])}, {self._of(['1', '2', '-1'])})",
            lambda: f"array_position(li, {self._of('1234')})",
            lambda: f"cast({self._of(['b', *DATES, *STAMPS])} as {self._of(_SQL_TYPES[:8])})",
            lambda: "pi()",
        )  # fmt: skip

    def _decimal_literal(self) -> str:
        return self._of(["1.50", "-2.25", "0", "7", "0.1", "99999999.99", "1e2", "'1.5'", "9" * 30, "0.10", "1.505"])

    def _decimal(self, depth: int = 1) -> str:
        if depth < 1 or self.random.random() < 0.4:
            return self._of(DECIMALS)
        inner = lambda: self._value("decimal", depth - 1)  # noqa: E731 - short
        return self._pick(
            lambda: f"({inner()} {self._of('+-*')} {self._of([inner(), self._of(INTEGERS), '2', '0.5'])})",
            lambda: f"({inner()} {self._of('/%')} {self._of(['2', '3', '7'])})",
            lambda: f"(- {inner()})",
            lambda: f"{self._of(['abs', 'floor', 'ceil', 'round', 'trunc', 'signum'])}({inner()})",
            lambda: f"round({inner()}, {self._of(['0', '1', '2', '-1'])})",
            lambda: (
                f"cast({inner()} as {self._of(['decimal(10,2)', 'decimal(10,1)', 'decimal(38,10)', 'decimal(20,0)'])})"
            ),
            lambda: f"cast({self._of(INTEGERS)} as {self._of(['decimal(30,2)', 'decimal(5,1)'])})",
            lambda: f"{self._of(['coalesce', 'nullif', 'greatest', 'least'])}({inner()}, {self._of([inner(), '0'])})",
        )

    # Texts
    def _text_literal(self) -> str:
        return self._of(
            ["'abc'", "'a'", "''", "'b'", "'7'", "'Zürich'", "'A_c%'", "'foo bar'", "'ß'", "'ABC'", "'a\\b'", '"abc"']
        )

    def _text(self, depth: int = 1) -> str:
        if depth < 1 or self.random.random() < 0.4:
            return self._of(TEXTS)
        inner = lambda: self._value("text", depth - 1)  # noqa: E731 - short
        return self._pick(
            lambda: f"{self._of(['lower', 'upper', 'initcap', 'trim', 'btrim', 'ltrim', 'rtrim', 'reverse', 'md5'])}({inner()})",
            lambda: f"{self._of(['btrim', 'ltrim', 'rtrim'])}({inner()}, 'a')",
            lambda: f"({inner()} || {self._of([inner(), self._text_literal(), self._column('number')])})",
            lambda: f"concat({inner()}, {self._of([inner(), self._text_literal(), self._column('number')])})",
            lambda: f"concat_ws('-', {inner()}, {inner()})",
            lambda: f"{self._of(['left', 'right'])}({inner()}, {self._of(['0', '1', '2', '-1'])})",
            lambda: f"{self._of(['substr', 'substring'])}({inner()}, {self._of(['0', '1', '2', '-1'])}{self._of(['', ', 1', ', 2'])})",
            lambda: f"{self._of(['lpad', 'rpad'])}({inner()}, {self._of(['0', '2', '5'])}{self._of(['', ', ' + chr(39) + '*' + chr(39)])})",
            lambda: f"repeat({inner()}, {self._of(['0', '2', '-1'])})",
            lambda: f"replace({inner()}, {self._text_literal()}, 'x')",
            lambda: f"translate({inner()}, 'ab', 'x')",
            lambda: f"split_part({inner()}, {self._of([chr(39) + ' ' + chr(39), chr(39) + 'b' + chr(39)])}, {self._of(['1', '2', '-1'])})",
            lambda: f"regexp_replace({inner()}, '[a-z]', 'X'{self._of(['', ', ' + chr(39) + 'g' + chr(39)])})",
            lambda: f"{self._of(['coalesce', 'nullif', 'ifnull', 'greatest', 'least'])}({inner()}, {self._of([inner(), self._text_literal()])})",
            lambda: f"cast({self._value(self._of(['number', 'moment', 'truth', 'time', 'text', 'decimal']), 0)} as {self._of(['string', 'varchar'])})",
            lambda: f"CASE WHEN {self._condition(0)} THEN {inner()} ELSE {self._text_literal()} END",
            lambda: f"array_to_string({self._of(['lstr', 'li'])}, ',')",
            lambda: f"lstr[{self._of(['1', '-1'])}]",
            lambda: f"{self._of(['to_hex', 'chr'])}({self._of(['i32', 'u8', 'i64', 'u16'])})",
            lambda: f"encode({self._of(['bin', 's'])}, '{self._of(['hex', 'base64'])}')",
            lambda: f"{self._of(['to_char', 'date_format'])}({self._value('moment', 0)}, '%Y-%m')",
        )  # fmt: skip

    # Times
    def _moment_literal(self) -> str:
        return self._of([
            "date '2020-01-01'", "date '1969-12-31'", "timestamp '2020-01-01 00:00:00'", "timestamp '2020-01-01 01:02:03.456789'",
            "timestamp '1969-12-31 23:59:59.5'", "'2020-01-01'", "'2020-01-01 01:02:03'", "'2020-01-01T00:00:00Z'",
            "'2024-02-29T12:00:00'", "timestamp '2262-04-11 23:47:16'", "cast('2021-05-06' as date)", "date '0001-01-01'",
            "timestamp '9999-12-31 23:59:59'", "'2020-01-01 00:00:00+02:00'", "to_timestamp('2020-01-01T00:00:00')",
            "cast('2020-01-01 00:00:00' as timestamp)", "date '2024-02-29'",
        ])  # fmt: skip

    def _zoned(self) -> str:
        """A column of times with a zone beside a date, a string or a time without one."""
        return f"{self._of(ZONED)} {self._of(COMPARISONS)} {self._of([self._moment_literal(), self._column('moment')])}"

    def _moment(self, depth: int = 1) -> str:
        if depth < 1 or self.random.random() < 0.5:
            return self._column("moment")
        inner = lambda: self._value("moment", depth - 1)  # noqa: E731 - short
        return self._pick(
            lambda: f"date_trunc('{self._of(['year', 'quarter', 'month', 'week', 'day', 'hour', 'minute', 'second'])}', {inner()})",
            lambda: f"cast({inner()} as {self._of(['date', 'timestamp', 'timestamp(3)', 'timestamp(0)', 'timestamp(9)'])})",
            lambda: f"({inner()} {self._of('+-')} interval '{self._of(['1 day', '1 month', '36 hour', '1 year 2 days'])}')",
            lambda: f"coalesce({inner()}, {self._of([inner(), self._moment_literal()])})",
            lambda: f"nullif({inner()}, {self._moment_literal()})",
            lambda: f"{self._of(['greatest', 'least'])}({inner()}, {inner()})",
            lambda: f"to_date({self._of([inner(), chr(39) + '2020-01-01' + chr(39)])})",
            lambda: f"{self._of(['to_timestamp', 'to_timestamp_seconds', 'to_timestamp_millis', 'to_timestamp_micros', 'to_timestamp_nanos', 'from_unixtime'])}({self._of(['i32', 'u8', 'i16', inner()])})",
            lambda: f"CASE WHEN b THEN {inner()} ELSE {inner()} END",
            lambda: f"try_cast({self._of(TEXTS)} as {self._of(['date', 'timestamp'])})",
        )  # fmt: skip

    def _time_literal(self) -> str:
        return self._of(["'01:02:03'", "'00:00:00'", "'23:59:59'", "cast('12:00:00' as time)"])

    def _time(self, depth: int = 1) -> str:
        return (
            self._of(TIMES)
            if depth < 1 or self.random.random() < 0.8
            else f"coalesce({self._of(TIMES)}, {self._of(TIMES)})"
        )

    def _span_literal(self) -> str:
        return self._of(SPANS)

    def _span(self, depth: int = 1) -> str:
        if depth < 1 or self.random.random() < 0.7:
            return self._of(SPANS)
        return self._pick(
            lambda: f"({self._of(STAMPS)} - {self._of(STAMPS)})",
            lambda: f"coalesce({self._of(SPANS)}, {self._of(SPANS)})",
        )

    # Bytes
    def _bytes_literal(self) -> str:
        return self._of(["X'616263'", "X''", "X'00ff'", "'abc'", "X'ff'", "X'61'"])

    def _bytes(self, depth: int = 1) -> str:
        if depth < 1 or self.random.random() < 0.7:
            return self._of(BYTES)
        return self._pick(
            lambda: f"coalesce({self._of(BYTES)}, {self._literal('bytes')})",
            lambda: f"{self._of(['sha256', 'sha224'])}({self._of(['bin', 's'])})",
            lambda: f"cast({self._of(['s', 'bin'])} as binary)",
            lambda: f"decode({self._of([chr(39) + '6162' + chr(39)])}, 'hex')",
        )
