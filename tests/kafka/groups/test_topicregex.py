"""Patterns match what `re` matches, in linear time, or are refused with a reason."""

import contextlib
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.kafka.groups.topicregex import MAX_PATTERN, InvalidPattern, TopicPattern

LETTERS = "ab1._-"
names = st.text(LETTERS, max_size=8)
atoms = st.sampled_from(
    ["a", "b", "1", ".", r"\.", r"\d", r"\w", r"\D", "[ab]", "[^a]", "[a-b1]", "[.-]", "^", "$"]
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@given(patterns, st.lists(names, max_size=8))
def test_a_pattern_matches_the_whole_names_that_re_matches(
    text: str, candidates: list[str]
) -> None:
    pattern = TopicPattern(text)
    expected = re.compile(text)
    for name in candidates:
        assert pattern.matches(name) == bool(expected.fullmatch(name)), name


@given(st.text(string.printable, max_size=30), names)
def test_any_text_is_a_pattern_or_refused(text: str, name: str) -> None:
    with contextlib.suppress(InvalidPattern):
        assert TopicPattern(text).matches(name) in {True, False}


def test_a_pattern_that_ruins_backtracking_engines_takes_no_time() -> None:
    pattern = TopicPattern("(a*)*(a|aa)+b")
    assert not pattern.matches("a" * 249)
    assert pattern.matches("a" * 248 + "b")


@pytest.mark.parametrize(
    ("text", "matched", "not_matched"),
    [
        ("orders-.*", "orders-1", "my-orders-1"),
        ("(?i)ORDERS", "orders", "order"),
        (r"\Qa.b\E.*", "a.bc", "axbc"),
        ("[[:alpha:]]+", "abc", "ab1"),
        ("[[:^alpha:]]+", "123", "1a3"),
        ("[]a]+", "a", "b"),
        ("(?P<kind>a|b)x", "ax", "cx"),
        (r"\Aab\z", "ab", "abb"),
        ("a{3}", "aaa", "aa"),
        ("", "", "a"),
        (r"orders\b.*", "orders.eu", "ordersx"),
        (r"\pL+", "abc", "ab1"),
        ("a{2", "a{2", "aa"),
    ],
)
def test_the_syntax_of_re2_is_understood(text: str, matched: str, not_matched: str) -> None:
    pattern = TopicPattern(text)
    assert pattern.matches(matched)
    assert not pattern.matches(not_matched)


@pytest.mark.parametrize(
    "text",
    ["(", ")", "a)", "[", "[b-a]", "*", "a**", "a{3,1}", "a{1001}", r"\1", r"\Z", "(?=a)", "(?!a)"]
    + ["[[:none:]]", "\\", "((a{1000}){1000})", "a" * (MAX_PATTERN + 1), "\ud800"],
)
def test_what_is_not_understood_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidPattern, match=r"pattern(: \w+| \w+)"):
        TopicPattern(text)


def test_a_pattern_that_needs_more_memory_than_it_is_given_is_refused() -> None:
    allowed = "|".join(["(.*a.{30}b)"] * 2)
    TopicPattern(allowed)
    refused = "|".join(["(.*a.{30}b)"] * 60)
    assert len(refused) <= MAX_PATTERN
    with pytest.raises(InvalidPattern, match="pattern too large"):
        TopicPattern(refused)


def test_a_name_is_matched_when_the_states_to_remember_exceed_the_memory() -> None:
    pattern = TopicPattern("[ab]*a[ab]{240}")  # an automaton with a state for each of 2**240 pasts
    assert pattern.matches("ab" * 4 + "a" + "ba" * 120)
    assert not pattern.matches("ab" * 4 + "b" + "bb" * 120)


def test_a_refused_pattern_writes_nothing_to_the_error_stream(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(InvalidPattern):
        TopicPattern("(" * 9)
    assert capfd.readouterr().err == ""
