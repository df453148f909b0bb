"""Clients generated from `openapi.json` ask a running server: `python -m tests.clients.run`.

The generators are installed into a folder that is thrown away: they would change versions here.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path

from server.settings import Settings
from tests.server import garden
from tests.server.running import Running

HERE = Path(__file__).parent
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
PACKAGES = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5", "@types/node@20")
KEY = "a-key"


def main() -> int:
    """Generate and run both; 0 where both found what they should."""
    if shutil.which("npm") is None:
        print("make test-clients needs node and npm", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photo.png").write_bytes(garden.photo(2))
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        (folder / "keys").write_text(f"app {digest}\n")
        settings = Settings(
            bundle=garden.grow(folder / "garden"),
            feedback_store=folder / "feedback",
            keys_file=folder / "keys",
        )
        with Running(settings) as running:
            with urllib.request.urlopen(f"{running.url}/openapi.json") as answer:
                (folder / "openapi.json").write_text(json.dumps(json.load(answer)))
            asked = (running.url, KEY, str(folder / "photo.png"))
            failed = [_python(folder, asked), _typescript(folder, asked)].count(False)
    print(f"{2 - failed} passed, {failed} failed")
    return 1 if failed else 0


def _python(folder: Path, asked: Sequence[str]) -> bool:
    venv.create(folder / "venv", with_pip=True)
    python, generated = folder / "venv" / "bin" / "python", folder / "generated"
    generated.mkdir()
    made = ["generate", "--path", str(folder / "openapi.json"), "--meta", "none"]
    made += ["--output-path", str(generated / "generated_client"), "--overwrite"]
    return (
        _ran(str(python), "-m", "pip", "install", "--quiet", PYTHON_GENERATOR)
        and _ran(str(python.with_name("openapi-python-client")), *made)
        and _ran(str(python), str(HERE / "asking.py"), *asked, env={"PYTHONPATH": str(generated)})
    )


def _typescript(folder: Path, asked: Sequence[str]) -> bool:
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(HERE / "asking.ts", folder)
    flags = ["--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck"]
    return (
        _ran("npm", "install", "--silent", *PACKAGES, cwd=folder)
        and _ran("npx", "openapi-typescript", "openapi.json", "-o", "schema.d.ts", cwd=folder)
        and _ran("npx", "tsc", *flags, "asking.ts", cwd=folder)
        and _ran("node", "asking.js", *asked, cwd=folder)
    )


def _ran(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> bool:
    """Whether a command ended well; what it said is shown where it did not."""
    print("$", " ".join(Path(word).name for word in command[:4]), flush=True)
    done = subprocess.run(command, cwd=cwd, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
