"""The plan of a scan for `explain_plan`: a tree of steps, the last step first, its inputs indented below.

    Order: by=[delay descending nulls last], rows=0 to 10
      Filter: condition=(carrier == "UA"), page skipping=none, unused indices=[carrier_idx (Bitmap)]
        LanceRead: uri=/lake/flights.lance, version=2, projection=[carrier, delay], fragments=365 of 365 (0-364), ...

Every fact comes from the functions that the scan itself uses. `LanceRead`, its `projection`, its
`metrics` and `ScalarIndexQuery` have the names of pylance's plans, which tools look for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import pyarrow.compute as pc

from lance_core.file.metadata import FileVersion
from lance_core.index.selection.candidates import Selection
from lance_core.schema import Field, Schema, quote_path
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import calls_of, columns_of
from lance_core.verbs.expressions.printed import format_expr, plain_name
from lance_core.verbs.scan.fragment_scan import FIRST_WINDOW_ROWS, FragmentScan, filter_reads
from lance_core.verbs.scan.options import STRICT_ROWS, ColumnOrdering, ScanOptions
from lance_core.verbs.scan.projection import Projection
from lance_core.verbs.scan.read_fragment import resolve_files_of_fields
from lance_core.verbs.scan.small_fragments import FEWEST, grouped

_COMPARISON: Final = re.compile(r"\(([^()\s]+) (==|!=|<=|>=|<|>) ([^()]+)\)")

_VERSIONS: Final = {version.manifest_numbers: version.value for version in FileVersion}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One step of a plan.

    Attributes:
        name: Its name.
        facts: Facts about it.
        inputs: The steps whose rows it uses.
    """

    name: str
    facts: tuple[str, ...] = ()
    inputs: tuple[PlanStep, ...] = field(default=())

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The printed lines of the step and of its inputs."""
        facts = f": {', '.join(self.facts)}" if self.facts else ""
        yield f"{'  ' * depth}{self.name}{facts}"
        for step in self.inputs:
            yield from step.lines(depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentPart:
    """The part of a fragment that is read.

    Attributes:
        fragment: The fragment.
        num_rows: Number of its rows that a scan without filter and limit returns.
        rows: Which of these rows are read; None for all.
        num_possible: How many of these rows can match the filter according to indices; None for all.
    """

    fragment: Fragment
    num_rows: int
    rows: range | None
    num_possible: int | None = None

    @property
    def num_looked_at(self) -> int:
        """The number of rows on which the filter is evaluated."""
        return self.num_rows if self.num_possible is None else self.num_possible


def scan_steps(
    snapshot: Snapshot,
    options: ScanOptions,
    parts: Sequence[FragmentPart],
    *,
    read_ahead: bool,
    verbose: bool = False,
    selection: Selection | None = None,
    metrics: str | None = None,
) -> PlanStep:
    """The steps of a scan in stored order.

    Args:
        snapshot: The version.
        options: What to read.
        parts: The parts of fragments to read, in order.
        read_ahead: Whether small fragments may be decoded together or read in parallel.
        verbose: Whether to list the fragments; the statistics of 0.1 files are then read.
        selection: The answer of indices about the filter.
        metrics: Measurements of a run, printed; None if the scan did not run.
    """
    measured = () if metrics is None else (metrics,)
    if options.filter is None:
        step = _read(snapshot, options, parts, options.schema, read_ahead=read_ahead, verbose=verbose)
        step = replace(step, facts=(*step.facts, *measured))
    else:
        reads = filter_reads(options.dataset or snapshot.manifest.schema, options, options.filter)
        below = _read(snapshot, options, parts, reads.early, read_ahead=read_ahead, verbose=verbose)
        queries = tuple(_describe_index_queries(snapshot, options, selection)) if selection is not None else ()
        below = replace(below, facts=(*below.facts, *measured), inputs=(*queries, *below.inputs))
        step = PlanStep(name="Filter", facts=tuple(_filter_facts(snapshot, options, selection)), inputs=(below,))
        if reads.late is not None:
            step = _take("rows that match", reads.late, snapshot, step)
        if options.limit is not None or options.offset:
            step = PlanStep(name="Limit", facts=tuple(_limit_facts(options)), inputs=(step,))
    return _add_last_steps(options, step)


def order_steps(snapshot: Snapshot, options: ScanOptions, keys: PlanStep) -> PlanStep:
    """The steps of a scan with `order_by`: `keys` reads the columns to order by, the others are read by row address."""
    stop = "the last" if options.limit is None else f"{options.offset + options.limit}"
    facts = (_list("by", map(_describe_ordering, options.order_by)), f"rows={options.offset} to {stop}")
    order = PlanStep(name="Order", facts=facts, inputs=(keys,))
    return _add_last_steps(options, _take("rows in order", options.schema, snapshot, order))


def nearest_steps(snapshot: Snapshot, options: ScanOptions, search: PlanStep, *, prefilter: bool) -> PlanStep:
    """The steps of a search for the nearest vectors: `search` finds rows, whose columns are read by row address."""
    step = search
    if options.filter is not None and not prefilter:
        facts = (f"condition={format_expr(options.filter)}", _list("columns", columns_of(options.filter)))
        step = PlanStep(name="Filter", facts=facts, inputs=(step,))
    if options.limit is not None or options.offset:
        stop = "the last" if options.limit is None else f"{options.offset + options.limit}"
        step = PlanStep(name="Limit", facts=(f"rows={options.offset} to {stop}",), inputs=(step,))
    return _add_last_steps(options, _take("rows that are nearest", options.schema, snapshot, step))


def _take(rows: str, schema: Schema, snapshot: Snapshot, step: PlanStep) -> PlanStep:
    """The step that reads further columns of the rows of a step."""
    return PlanStep(name="Take", facts=(_list("columns", _paths(schema, snapshot)), f"of={rows}"), inputs=(step,))


def _add_last_steps(options: ScanOptions, step: PlanStep) -> PlanStep:
    """Add the last steps: computed columns, and the size of batches."""
    if options.projection is not None:
        step = PlanStep(
            name="Project", facts=(_list("columns", _describe_outputs(options.projection)),), inputs=(step,)
        )
    sizes = []
    if options.batch_size is not None or options.strict_batch_size:
        size = options.batch_size or STRICT_ROWS
        sizes.append(f"rows={size} each but the last" if options.strict_batch_size else f"rows=at most {size}")
    if options.batch_size_bytes is not None:
        sizes.append(f"bytes=about {options.batch_size_bytes}")
    return PlanStep(name="Batches", facts=tuple(sizes), inputs=(step,)) if sizes else step


def _read(
    snapshot: Snapshot,
    options: ScanOptions,
    parts: Sequence[FragmentPart],
    schema: Schema,
    *,
    read_ahead: bool,
    verbose: bool,
) -> PlanStep:
    total = len(snapshot.manifest.fragments)
    ids = f" ({_format_ranges(part.fragment.id for part in parts)})" if parts else ""
    num_rows = sum(part.num_rows if part.rows is None else len(part.rows) for part in parts)
    files = [file for part in parts for file, _, _ in resolve_files_of_fields(part.fragment, schema)]
    versions = {(file.file_major_version, file.file_minor_version) for file in files}
    projection = _list("projection", _paths(schema, snapshot))
    facts = [f"uri={snapshot.store.root}", f"version={snapshot.manifest.version}", projection]
    if options.row_columns:
        facts.append(_list("row columns", options.row_columns))
    facts += [f"fragments={len(parts)} of {total}{ids}", f"rows={num_rows}"]
    hidden = sum(part.fragment.physical_rows - part.num_rows for part in parts if part.fragment.physical_rows)
    if hidden:
        facts.append(f"deleted rows={hidden}")
    facts.append(f"files={len(files)}")
    if versions:
        facts.append(_list("file versions", sorted(_VERSIONS.get(v, "unknown") for v in versions)))
    scans = [FragmentScan(snapshot, part.fragment, options) for part in parts]
    facts += _describe_read_ahead(options, scans) if read_ahead else []
    below = tuple(_describe_fragment(snapshot, part, schema) for part in parts) if verbose else ()
    return PlanStep(name="LanceRead", facts=tuple(facts), inputs=below)


def _describe_read_ahead(options: ScanOptions, scans: Sequence[FragmentScan]) -> list[str]:
    """How many fragments are decoded together, and how many are read in parallel."""
    groups = [group for group in grouped(scans) if len(group) >= FEWEST]
    facts = []
    if groups:
        facts.append(f"decoded together={sum(map(len, groups))} fragments in {len(groups)} groups")
    parallel = sum(scan.is_small and not scan.is_near for scan in scans)
    if options.fragment_readahead > 1 and len(scans) > 1 and parallel:
        facts.append(f"in parallel={parallel} fragments, {options.fragment_readahead} at a time")
    return facts


def _describe_fragment(snapshot: Snapshot, part: FragmentPart, schema: Schema) -> PlanStep:
    facts = [f"rows={part.num_rows}"]
    if part.rows is not None:
        facts.append(f"read={part.rows.start} to {part.rows.stop}")
    for file, columns, _ in resolve_files_of_fields(part.fragment, schema):
        facts.append(
            f"{snapshot.data_file(file)[1]}={file.file_size_bytes or 'unknown'} bytes for {len(columns.fields)} columns"
        )
    return PlanStep(name=f"Fragment {part.fragment.id}", facts=tuple(facts))


def _filter_facts(snapshot: Snapshot, options: ScanOptions, selection: Selection | None) -> Iterator[str]:
    expression = options.filter
    assert expression is not None
    if len(options.conjuncts) > 1:
        yield _list("conditions", map(format_expr, options.conjuncts))
    else:
        yield f"condition={format_expr(expression)}"
    for prefix, label in (("lance.", "in Python"), ("datafusion.", "in DataFusion")):
        functions = {plain_name(call) or call for call in calls_of(expression) if call.startswith(prefix)}
        if functions:
            yield _list(label, sorted(functions))
    names = columns_of(expression)
    ids = {node.id for top in snapshot.manifest.schema.fields if top.name in names for node, _ in top.walk()}
    used = set(selection.indices) if selection is not None else set()
    if selection is not None:
        yield _list("indices", sorted(used))
        yield f"ruled out={selection.num_ruled_out} of {len(selection.view.ids)} fragments"
    unused = {f"{index.name} ({index.kind})" for index in snapshot.manifest.indices if ids.intersection(index.fields)}
    unused -= used
    if unused:
        yield _list("unused indices", sorted(unused))


def _describe_index_queries(snapshot: Snapshot, options: ScanOptions, selection: Selection) -> Iterator[PlanStep]:
    """The query of each index: the conditions on its fields."""
    assert options.filter is not None
    schema = snapshot.manifest.schema
    indices = {index.name: index for index in snapshot.manifest.indices}
    for shown in selection.indices:
        name = shown.rpartition(" (")[0]
        index = indices[name]
        tops = {top.name for top in schema.fields if any(node.id in index.fields for node, _ in top.walk())}
        conditions = [part for part in options.conjuncts or (options.filter,) if tops.intersection(columns_of(part))]
        query = " AND ".join(map(_as_sql, conditions))
        yield PlanStep(name="ScalarIndexQuery", facts=(f"query=[{query}]@{name}({index.kind})",))


def _as_sql(expression: pc.Expression) -> str:
    """A condition as it is printed; a plain comparison is in SQL, with `=` for `==`."""
    condition = format_expr(expression)
    match = _COMPARISON.fullmatch(condition)
    return f"{match[1]} {'=' if match[2] == '==' else match[2]} {match[3]}" if match else condition


def _limit_facts(options: ScanOptions) -> Iterator[str]:
    if options.offset:
        yield f"offset={options.offset}"
    if options.limit is not None:
        yield f"limit={options.limit}"
        yield f"looks at={FIRST_WINDOW_ROWS} rows of a fragment first, then at four times as many"


def _describe_ordering(ordering: ColumnOrdering) -> str:
    direction = "ascending" if ordering.ascending else "descending"
    return f"{ordering.column_name} {direction} nulls {'first' if ordering.nulls_first else 'last'}"


def _describe_outputs(projection: Projection) -> Iterator[str]:
    for output in projection.outputs or ():
        if output.expression is not None:
            yield f"{output.field.name} = {format_expr(output.expression)}"
        else:
            path = quote_path(output.path)
            yield path if path == output.field.name else f"{output.field.name} = {path}"


def _paths(schema: Schema, snapshot: Snapshot) -> Iterator[str]:
    """The columns of a schema; for a column that is read in part, the fields that are read."""
    return (path for f in schema.fields for path in _leaves(f, snapshot.manifest.schema.column(f.name)))


def _leaves(node: Field, whole: Field, *above: str) -> Iterator[str]:
    path = (*above, node.name)
    if node == whole:
        yield quote_path(path)
        return
    whole_children = {child.id: child for child in whole.children}
    for child in node.children:
        yield from _leaves(child, whole_children[child.id], *path)


def _list(name: str, items: Iterable[str]) -> str:
    return f"{name}=[{', '.join(items)}]"


def _format_ranges(ids: Iterable[int]) -> str:
    """Ids as ranges, such as `0-3, 7`, in the given order."""
    numbers = list(ids)
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1), len(numbers)]
    pieces = [numbers[start:stop] for start, stop in pairwise(starts)]
    return ", ".join(f"{piece[0]}-{piece[-1]}" if len(piece) > 1 else f"{piece[0]}" for piece in pieces if piece)
