"""The event log of a Spark application: which executors ran the tasks of which jobs."""

from __future__ import annotations

import json
from pathlib import Path

_DESCRIPTION = "spark.job.description"


def event_log(folder: Path) -> dict[str, str]:
    """The settings of a session that writes its events into a folder, which is made."""
    folder.mkdir(exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        # Spark flushes the file with each job.
        "spark.eventLog.buffer.kb": "1k",
    }


def executors_of_jobs(folder: Path) -> list[tuple[str, list[str]]]:
    """Each job's description, and the executor of each of its finished tasks.

    A driver that was killed leaves an unfinished last line.
    """
    found = []
    for path in sorted(folder.iterdir()):
        stages: dict[int, tuple[str, list[str]]] = {}
        *lines, _ = path.read_text().split("\n")
        for event in map(json.loads, lines):
            match event["Event"]:
                case "SparkListenerJobStart":
                    job = (str(event["Properties"].get(_DESCRIPTION)), list[str]())
                    stages |= dict.fromkeys(event["Stage IDs"], job)
                    found.append(job)
                case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                    stages[event["Stage ID"]][1].append(event["Task Info"]["Executor ID"])
    return found
