"""A job that uses a bit of everything, for the oldest Spark that works: prints what it found.

python oldest_job.py BOOTSTRAP SOURCE TARGET DIRECTORY
"""

from __future__ import annotations

import sys

import pyspark

from tidelog.spark import lag_of, read_lake, session
from tidelog.spark.lake import Lake, LakeJob


def main() -> None:
    bootstrap, source, target, directory = sys.argv[1:]
    spark = session("oldest", master="local[2]", settings={"spark.driver.memory": "1g"})
    options = {"kafka.bootstrap.servers": bootstrap}
    found: list[object] = [pyspark.__version__]

    frame = spark.range(100).selectExpr("CAST(id AS string) AS key", "CAST(id AS string) AS value")
    frame.write.format("tidelog").mode("append").options(**options, topic=source).save()
    batch = spark.read.format("tidelog").options(**options, subscribe=source).load()
    found.append(batch.selectExpr("sum(CAST(CAST(value AS string) AS long))").collect()[0][0])

    stream = (
        spark.readStream.format("tidelog")
        .options(**options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
        .selectExpr("key", "value")
        .writeStream.format("tidelog")
        .options(**options, topic=target, checkpointLocation=f"{directory}/checkpoint")
        .trigger(availableNow=True)
    )
    for _ in range(2):  # the second time there is nothing left to do
        query = stream.start()
        query.awaitTermination()
    written = spark.read.format("tidelog").options(**options, subscribe=target).load()
    found += [written.count(), lag_of(query.lastProgress).total]

    lake = Lake(f"{directory}/lake")
    found.append(sum(moved.rows for moved in LakeJob(spark, lake, source, bootstrap).run()))
    found.append(read_lake(spark, lake, source, bootstrap=bootstrap).count())
    print(*found)
    spark.stop()


if __name__ == "__main__":
    main()
