"""A stand-in for the HTTP interface of the Hugging Face Hub, with repositories in memory."""

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Files = dict[str, bytes]


class Hub(ThreadingHTTPServer):
    """Repositories as files by name; ``cut`` names a file whose next download breaks off."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Files] = {}
        self.visibility: dict[str, str] = {}
        self.cut: str | None = None
        self.sent: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != "Bearer secret":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular"} for f in files]
            self._answer(200, {"files": [mode | {"shouldIgnore": False} for mode in modes]})
        else:
            name = self.path.removeprefix("/api/models/").removesuffix("/commit/main")
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[name][line["value"]["path"]] = content
            url = f"{self.server.address}/{name}/commit/{self._commit(name)}"
            self._answer(200, {"commitUrl": url, "commitOid": self._commit(name), "success": True})

    def do_HEAD(self) -> None:
        self._get(body=False)

    def do_GET(self) -> None:
        self._get(body=True)

    def _get(self, *, body: bool) -> None:
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(?:revision|tree)/([^?]+).*", self.path):
            name = api[1]
            files = [
                {"type": "file", "path": file, "rfilename": file, "size": len(content), "oid": "0"}
                for file, content in self.server.repositories[name].items()
            ]
            whole = {"id": name, "sha": self._commit(name), "siblings": files}
            self._answer(200, files if "/tree/" in self.path else whole)
            return
        parts = re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        content = self.server.repositories.get(parts[1], {}).get(parts[3]) if parts else None
        if parts is None or parts[1] not in self.server.repositories:
            self._answer(404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"})
        elif parts[2] not in ("main", self._commit(parts[1])):
            self._answer(404, {"error": "none"}, {"X-Error-Code": "RevisionNotFound"})
        elif content is None:
            self._answer(404, {"error": "none"}, {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(parts[1], parts[3], content, body=body)

    def _send(self, name: str, file: str, content: bytes, *, body: bool) -> None:
        start = int((self.headers["Range"] or "bytes=0-")[6:].partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", self._commit(name))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            self.server.sent.append(f"{file} from {start}")
            cut, self.server.cut = file == self.server.cut, None
            self.wfile.write(content[start:][: len(content) // 2 if cut else None])
            if cut:
                self.close_connection = True

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        exists = name in self.server.repositories
        self.server.repositories.setdefault(name, {})
        self.server.visibility.setdefault(name, asked["visibility"])
        self._answer(409 if exists else 200, {"url": f"{self.server.address}/{name}"})

    def _commit(self, name: str) -> str:
        files = sorted(self.server.repositories[name].items())
        return hashlib.sha1(repr(files).encode()).hexdigest()

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
