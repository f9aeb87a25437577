"""Register with Arrow, and call, functions that it has no kernel for: they are computed in Python on whole arrays.

Arrow finds a function by its name, and a name has one signature. So a name states the function and its types, by which
a process that gets an expression from another process can register the functions that the expression calls:

    lance.<function>.<the types of the arguments and of the result: a serialized Arrow schema, as base64>
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, LanceError
from lance_core.verbs.expressions.sql.implementations import IMPLEMENTATIONS
from lance_core.verbs.expressions.sql.typed import Typed, call

__all__ = ["PREFIX", "python_call", "register"]

PREFIX: Final = "lance."

_registered: set[str] = set()


def python_call(function: str, arguments: Sequence[Typed], kind: pa.DataType) -> Typed:
    """A call of one of `IMPLEMENTATIONS` whose result has type `kind`."""
    types = [*(argument.type for argument in arguments), kind]
    signature = pa.schema([pa.field(str(position), argument_type) for position, argument_type in enumerate(types)])
    name = f"{PREFIX}{function}.{base64.b64encode(signature.serialize().to_pybytes()).decode()}"
    register([name])
    return call(name, list(arguments), kind)


def register(names: Iterable[str]) -> None:
    """Make these functions known to Arrow in this process."""
    for name in names:
        if name in _registered or not name.startswith(PREFIX):
            continue
        function, encoded = name.removeprefix(PREFIX).split(".", 1)
        *types, kind = (f.type for f in pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded))))
        arguments = {f"x{position}": argument_type for position, argument_type in enumerate(types)}
        documentation = {"summary": function, "description": function}
        pc.register_scalar_function(_adapt(function, kind), name, documentation, arguments, kind)
        _registered.add(name)


def _adapt(name: str, kind: pa.DataType) -> Callable[..., pa.Array]:
    """Adapt a function to Arrow's calling convention: a context comes first, then scalars and arrays mixed."""
    function = IMPLEMENTATIONS[name]

    def adapted(context: Any, *arguments: Any) -> pa.Array:
        arrays = [
            pa.repeat(argument, context.batch_length) if isinstance(argument, pa.Scalar) else argument
            for argument in arguments
        ]
        try:
            result = function(kind, *arrays)
            return result if isinstance(result, pa.Array) else pa.array(result, kind)
        except (LanceError, pa.ArrowException):
            raise
        except (ValueError, ArithmeticError) as error:
            raise InvalidInputError(f"the function {name} cannot be evaluated: {error}") from error

    return adapted
