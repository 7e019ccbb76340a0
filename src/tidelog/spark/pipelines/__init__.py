"""Pipelines on Spark: what the files of a project import, and what runs them.

    rules      conditions that rows must keep, and what happens to those that do not
    ends       topics in, topics and lake tables out
    project    a project on disk: its specification, its state, and how a new one begins
    sample     orders and payments to begin with
    events     what a run tells while it runs
    graph      what the definitions of a project read and write
    watching   Spark's progress as events
    runner     the process in which Spark runs
    launching  starts that process and listens to it

A project is one of Spark Declarative Pipelines, which Spark's own `spark-pipelines` runs as well;
the names below spare it the options:

    @clean(Rule("amount is positive", "amount > 0", "drop"))
    def orders():
        return from_topic("orders", "order_id string, amount double")
"""

from tidelog.spark.pipelines.ends import bootstrap, from_topic, lake, to_lake, to_topic
from tidelog.spark.pipelines.rules import Rule, clean

__all__ = ["Rule", "bootstrap", "clean", "from_topic", "lake", "to_lake", "to_topic"]
