"""Generated and published clients ask a running server: `python -m tests.clients.run`.

The generators are installed into a folder that is thrown away: they would change versions here. For
TypeScript the lines and files of `docs/clients.md` are run as they stand; of Pl@ntNet it is the
package that its documentation recommends for web pages.
"""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.server import garden
from tests.server.server_thread import Running

HERE = Path(__file__).parent
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
PAGE = HERE.parents[1] / "docs" / "clients.md"
KEY = "a-key"
PLANTNET_CLIENT = "ai-taxonomist@0.7.0"


def main() -> int:
    """Run all; 0 where all found what they should."""
    if shutil.which("npm") is None:
        print("make test-clients needs node and npm", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photo.png").write_bytes(garden.photo(2))
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        (folder / "keys").write_text(f"app {digest}\n")
        with Running(
            garden.grow(folder / "garden"),
            feedback_store=folder / "feedback",
            keys_file=folder / "keys",
            plantnet=True,
        ) as running:
            with urllib.request.urlopen(f"{running.url}/openapi.json") as answer:
                (folder / "openapi.json").write_text(json.dumps(json.load(answer)))
            calls = (running.url, KEY, str(folder / "photo.png"))
            clients = (_python, _typescript, _plantnet)
            failed = [client(folder, calls) for client in clients].count(False)
    print(f"{len(clients) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _python(folder: Path, asked: Sequence[str]) -> bool:
    venv.create(folder / "venv", with_pip=True)
    python, generated = folder / "venv" / "bin" / "python", folder / "generated"
    generated.mkdir()
    results = ["generate", "--path", str(folder / "openapi.json"), "--meta", "none"]
    results += ["--output-path", str(generated / "generated_client"), "--overwrite"]
    return (
        _ran(str(python), "-m", "pip", "install", "--quiet", PYTHON_GENERATOR)
        and _ran(str(python.with_name("openapi-python-client")), *results)
        and _ran(str(python), str(HERE / "asking.py"), *asked, env={"PYTHONPATH": str(generated)})
    )


def _typescript(folder: Path, asked: Sequence[str]) -> bool:
    url, key, photo = asked
    page = PAGE.read_text("utf-8").partition("\n## TypeScript\n")[2]
    for name, text in re.findall(r"```ts\n// (\S+)\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(text)
    for name in ("asking.ts", "patience.ts"):
        shutil.copy(HERE / name, folder)
    shutil.copy(photo, folder / "photo.jpg")
    (lines,) = re.findall(r"```sh\n(npm .*?)```", page, re.DOTALL)
    lines = lines.replace("http://127.0.0.1:8000", url).replace("KEY", key)
    commands = [shlex.split(line) for line in lines.splitlines()]
    (compiled,) = (command for command in commands if "tsc" in command)
    commands += [[*compiled[:-1], "asking.ts", "patience.ts"]]
    commands += [["node", "asking.js", *asked], ["node", "patience.js"]]
    return all(_ran(*command, cwd=folder) for command in commands)


def _plantnet(folder: Path, asked: Sequence[str]) -> bool:
    (folder / "plantnet").mkdir()
    shutil.copy(HERE / "plantnet.mjs", folder / "plantnet")
    commands = (
        ("npm", "install", "--ignore-scripts", "--prefix", ".", PLANTNET_CLIENT),
        ("node", "plantnet.mjs", *asked),
    )
    return all(_ran(*command, cwd=folder / "plantnet") for command in commands)


def _ran(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> bool:
    """Whether a command ended well; what it said is shown where it did not."""
    print("$", " ".join(Path(word).name for word in command[:4]), flush=True)
    process = subprocess.run(command, cwd=cwd, env=env, check=False, capture_output=True, text=True)
    if process.returncode:
        print(process.stdout, process.stderr)
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
