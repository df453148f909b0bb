"""Write `tests/golden/openapi.json` anew: `python -m tests.server.write_golden`."""

import json
import tempfile
from pathlib import Path

from models.files import write_atomic
from server.app import create_app
from server.settings import Settings
from tests.server import garden

GOLDEN = Path(__file__).parents[1] / "golden" / "openapi.json"


def main() -> None:
    """Describe the application of a throw-away bundle."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            bundle=garden.grow(Path(folder)), feedback_store=Path(folder) / "feedback"
        )
        app = create_app(settings)
    write_atomic(GOLDEN, (json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
