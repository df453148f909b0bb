"""The classifier behind LitServe: `python -m benchmarks.load.peer_servers.with_litserve PORT`."""

import os
import sys

import litserve
from fastapi import Request

from benchmarks.load.peer_servers import classifier


class Api(litserve.LitAPI):  # type: ignore[misc]  # no types where it is not installed
    """One photo a request."""

    def setup(self, _device: str) -> None:
        """Open the bundle."""
        self.classify = classifier()

    def decode_request(self, request: Request) -> bytes:
        """The bytes of the photo; LitServe hands over the form of the request."""
        content: bytes = request["photo"].file.read()
        return content

    def predict(self, photo: bytes) -> list[int]:
        """The set."""
        return self.classify(photo)

    def encode_response(self, output: list[int]) -> dict[str, list[int]]:
        """The answer."""
        return {"set": output}


if __name__ == "__main__":
    workers = int(os.environ["PEER_WORKERS"])
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=workers)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
