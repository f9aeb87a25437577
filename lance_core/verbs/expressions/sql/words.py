"""Find the keywords of SQL that stand for columns: a word is a name where it can be nothing else.

A word is a name beside a dot, and where a value must begin and end with that word:

    cast(order as int) = 3 AND date > group.key
         ~~~~~                 ~~~~   ~~~~~ ~~~

Words that begin an expression themselves (NOT, CASE, SELECT) are names only where what follows cannot continue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

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
"""Words that are no names where a value must stand; pylance rejects most of them there, or takes them for a clock."""
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
_CARRY_ON: Final = {TokenType.NOT: _SIGNS, TokenType.CASE: _SIGNS | {TokenType.WHEN}}
"""Words that an expression can follow, and the tokens after them that could begin the expression."""


def with_names(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, in which keywords that can only be names of columns have become names."""
    renamed_tokens: list[Token] = []
    before: TokenType | None = None
    for index, token in enumerate(tokens):
        is_operand = before is None or before in _BEFORE_VALUE
        if before is TokenType.CASE:
            is_operand = token.token_type is not TokenType.WHEN
        if before is TokenType.DOT or _is_before_dot(tokens, index) or (is_operand and _is_value(tokens, index)):
            token = _as_name(token)  # noqa: PLW2901 - a copy of another kind
        renamed_tokens.append(token)
        # After a NOT in front of an operand, that operand is still to come.
        if not (is_operand and token.token_type is TokenType.NOT):
            before = token.token_type
    return renamed_tokens


def _as_name(token: Token) -> Token:
    if not _is_word(token):
        return token
    return Token(TokenType.IDENTIFIER, token.text, token.line, token.col, token.start, token.end, token.comments)


def _is_word(token: Token) -> bool:
    return token.text.isidentifier() and token.token_type not in (TokenType.STRING, TokenType.HEX_STRING)


def _token_kind(tokens: Sequence[Token], index: int) -> TokenType | None:
    return tokens[index].token_type if index < len(tokens) else None


def _is_before_dot(tokens: Sequence[Token], index: int) -> bool:
    """Whether a word is a name because of the dot after it."""
    is_path = _token_kind(tokens, index + 1) is TokenType.DOT and _token_kind(tokens, index + 2) is not TokenType.NUMBER
    return is_path and tokens[index].token_type not in _CONSTANTS


def _is_value(tokens: Sequence[Token], index: int) -> bool:
    """Whether a word that stands where a value must begin ends there as well."""
    kind, after, second = (_token_kind(tokens, i) for i in (index, index + 1, index + 2))
    if kind in _NEVER or (after is not None and after not in _AFTER_VALUE):
        return False
    if kind is TokenType.SELECT:  # of a query, which is rejected in any case
        return after is not TokenType.STAR
    if kind not in _CARRY_ON:
        return True
    if kind is TokenType.CASE and all(token.token_type is not TokenType.WHEN for token in tokens[index:]):
        return True
    # What follows can be a name itself: NOT like.gate, CASE like WHEN 1 THEN 2 END, NOT like = 3.
    leads_name = after is not None and _is_word(tokens[index + 1])
    leads_name = leads_name and (second is TokenType.DOT or second in _AFTER_VALUE - _SIGNS)
    return not leads_name and after not in _CARRY_ON[kind]
