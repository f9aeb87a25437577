"""Keywords that stand for columns: a word is a name where it can be nothing else.

That is beside a dot, and where a value must begin and end at once:

    cast(order as int) = 3 AND date > group.key
         ~~~~~                 ~~~~   ~~~~~ ~~~

Words that begin something themselves (NOT, CASE, SELECT) are names only before what cannot carry that on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

__all__ = ["CLOCKS", "with_names"]

CLOCKS: Final = ("current_date", "current_time", "current_timestamp")
"""Functions without parentheses; a column of such a name needs back-ticks, as in pylance."""

_CONSTANTS: Final = frozenset({TokenType.NULL, TokenType.TRUE, TokenType.FALSE})
"""Words that are values wherever they stand."""
_NEVER: Final = _CONSTANTS | {
    TokenType.INTERVAL,
    TokenType.EXISTS,
    TokenType.CURRENT_DATE,
    TokenType.CURRENT_TIME,
    TokenType.CURRENT_TIMESTAMP,
}
"""Words that are no names where a value must stand; pylance refuses most of them there, or takes them for a clock."""
_PREFIXES: Final = frozenset({TokenType.NOT, TokenType.CASE, TokenType.SELECT})
"""Words that an expression can follow."""
_OPERATORS: Final = frozenset({
    TokenType.EQ,
    TokenType.NEQ,
    TokenType.NULLSAFE_EQ,
    TokenType.LT,
    TokenType.LTE,
    TokenType.GT,
    TokenType.GTE,
    TokenType.PLUS,
    TokenType.DASH,
    TokenType.STAR,
    TokenType.SLASH,
    TokenType.MOD,
    TokenType.AMP,
    TokenType.PIPE,
    TokenType.CARET,
    TokenType.DPIPE,
    TokenType.AND,
    TokenType.OR,
    TokenType.LIKE,
    TokenType.ILIKE,
    TokenType.BETWEEN,
    TokenType.IN,
    TokenType.COMMA,
    TokenType.WHEN,
    TokenType.THEN,
    TokenType.ELSE,
})  # fmt: skip
_BEFORE_VALUE: Final = _OPERATORS | {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.FROM, TokenType.SEMICOLON}
_AFTER_VALUE: Final = _OPERATORS | {
    TokenType.R_PAREN,
    TokenType.R_BRACKET,
    TokenType.IS,
    TokenType.NOT,
    TokenType.ALIAS,
    TokenType.DCOLON,
    TokenType.END,
}
_SIGNS: Final = frozenset({TokenType.PLUS, TokenType.DASH, TokenType.NOT})
_AFTER_PREFIX: Final = _SIGNS | {TokenType.STAR, TokenType.WHEN}
"""What can be the beginning of an expression as well, or of the rest of CASE or SELECT."""


def with_names(found: Sequence[Token]) -> list[Token]:
    """The tokens, with the keywords among them that are names made such."""
    made: list[Token] = []
    before: TokenType | None = None
    for index, token in enumerate(found):
        is_operand = before is None or before in _BEFORE_VALUE
        if before is TokenType.CASE:
            is_operand = token.token_type is not TokenType.WHEN
        if before is TokenType.DOT or _is_name(token, found[index + 1 : index + 3], is_operand=is_operand):
            token = _as_name(token)  # noqa: PLW2901 - a copy of another kind
        made.append(token)
        # After a NOT in front of an operand, that operand is still to come.
        if not (is_operand and token.token_type is TokenType.NOT):
            before = token.token_type
    return made


def _as_name(token: Token) -> Token:
    if not _is_word(token) or token.token_type is TokenType.STRING:
        return token
    return Token(TokenType.IDENTIFIER, token.text, token.line, token.col, token.start, token.end, token.comments)


def _is_word(token: Token) -> bool:
    return bool(token.text.isidentifier())


def _is_name(token: Token, rest: Sequence[Token], *, is_operand: bool) -> bool:
    """Whether a word is a name, by the tokens after it."""
    kind = token.token_type
    after, second = (rest[i].token_type if i < len(rest) else None for i in (0, 1))
    if after is TokenType.DOT:
        return kind not in _CONSTANTS and second is not TokenType.NUMBER
    if not is_operand or kind in _NEVER or (after is not None and after not in _AFTER_VALUE):
        return False
    if kind not in _PREFIXES:
        return True
    # What follows a prefix can be a name itself: NOT like.gate, CASE like WHEN 1 THEN 2 END, NOT like = 3.
    leads_name = bool(rest) and _is_word(rest[0]) and (second is TokenType.DOT or second in _AFTER_VALUE - _SIGNS)
    return not leads_name and after not in _AFTER_PREFIX
