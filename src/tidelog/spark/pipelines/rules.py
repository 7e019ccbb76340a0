"""Rules that rows must keep, and what happens to rows that do not.

A rule has a name, a condition in SQL, and one of three answers:

    drop        the row is left out, and counted
    fail        the run ends with an error that shows the row
    quarantine  the row is left out, counted, and written to a topic with the names of the rules

A condition that is null is not kept: an amount that is missing is not positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from tidelog.spark.pipelines.ends import Query, sink_to_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DROP: Final = "drop"
FAIL: Final = "fail"
QUARANTINE: Final = "quarantine"
ANSWERS: Final = (DROP, FAIL, QUARANTINE)
# Names of observed figures: how many rows a view saw, and how many broke each rule.
CHECKED: Final = "checked"
ROWS: Final = "all rows"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition, in SQL, that rows must keep."""

    name: str
    condition: str
    answer: str = DROP

    def __post_init__(self) -> None:
        if self.answer not in ANSWERS:
            raise ValueError(
                f"Rule {self.name!r} says {self.answer!r} about rows that break it: write one of "
                f"{', '.join(ANSWERS)}."
            )
        if not self.name or self.name == ROWS:
            raise ValueError(f"A rule cannot be called {self.name!r}.")

    def kept(self) -> Column:
        """Return whether a row keeps the rule."""
        return sql.coalesce(sql.expr(self.condition).cast("boolean"), sql.lit(False))


def clean(*rules: Rule, quarantine: str | None = None) -> Callable[[Query], Query]:
    """Make the decorated query a view of the rows that keep the rules.

    The view has the name of the function. `quarantine` is the topic for rows that break a rule with
    that answer.
    """
    names = [rule.name for rule in rules]
    if len(set(names)) != len(names):
        raise ValueError(f"Two rules have the same name: {', '.join(names)}.")
    held = [rule.name for rule in rules if rule.answer == QUARANTINE]
    if held and quarantine is None:
        raise ValueError(f"Rule {held[0]!r} needs a topic: clean(..., quarantine='topic').")

    def decorate(query: Query) -> Query:
        from pyspark import pipelines as dp

        view: str = query.__name__
        dp.temporary_view(name=view)(lambda: keep(view, query(), rules))
        if held and quarantine is not None:
            sink_to_topic(
                f"{view}_rejected", quarantine, lambda: rejected(view, query(), rules), {}
            )
        return query

    return decorate


def keep(view: str, rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows that keep all rules; those that do not are counted, or end the run.

    Rules that end the run are asked while rows are counted, and not in the filter: there Spark may
    ask other conditions first, even those of a later join, and not see the row at all.
    """
    if not rules:
        return rows
    counts = [_broken(view, rule).alias(rule.name) for rule in rules]
    kept = rows.observe(f"{CHECKED}:{view}", sql.count(sql.lit(1)).alias(ROWS), *counts)
    for rule in rules:
        if rule.answer != FAIL:
            kept = kept.filter(rule.kept())
    return kept


def _broken(view: str, rule: Rule) -> Column:
    """Return how many rows break a rule, unless one is too many."""
    if rule.answer != FAIL:
        return sql.count_if(~rule.kept())
    text = sql.concat(
        sql.lit(f"Rule '{rule.name}' of {view} ({rule.condition}) is broken by "),
        sql.to_json(sql.struct("*")),
    )
    error = sql.raise_error(text).cast("boolean")
    return sql.count_if(sql.when(rule.kept(), sql.lit(False)).otherwise(error))


def rejected(view: str, rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return the rows that belong to the quarantine, as records."""
    held = [rule for rule in rules if rule.answer == QUARANTINE]
    broken = sql.filter(
        sql.array(*(sql.when(~rule.kept(), sql.lit(rule.name)) for rule in held)),
        lambda name: name.isNotNull(),
    )
    found = rows.select(
        sql.lit(view).alias("view"), broken.alias("rules"), sql.struct("*").alias("row")
    )
    return found.filter(sql.size("rules") > 0).select(sql.to_json(sql.struct("*")).alias("value"))
