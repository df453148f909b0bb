"""Write `docs/calibration.schema.json` again: `python -m tests.calibration.write_schema`."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.schema import SCHEMA_VERSION

SCHEMA = Path(__file__).parents[2] / "docs" / "calibration.schema.json"


def schema() -> dict[str, Any]:
    """The JSON Schema of ``calibration.json``."""
    schema = TypeAdapter(CalibrationRecord).json_schema()
    schema["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    schema["required"] = ["schema_version", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n")
