"""`florilege serve` as a process of its own."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


class ServeProcess:
    """Runs until the block ends; ``port`` is where it listens, ``lines`` is its output."""

    def __init__(self, bundle: Path, *flags: str, program: tuple[str, ...] = ("-m", "florilege")):
        command = [sys.executable, *program, "serve", str(bundle), "--port", "0", *flags]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._ready.wait(60), self.lines
        result = re.search(r"http://127\.0\.0\.1:(\d+)/", "".join(self.lines))
        assert result, self.lines
        self.port = int(result[1])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "ready:" in line:
                self._ready.set()
        self._ready.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
