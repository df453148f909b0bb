"""The socket that a server listens on, made before any slow work."""

import socket

from florilege.errors import UsageError


def bind(host: str, port: int) -> socket.socket:
    """Bind the port before any slow work; `UsageError` if it is in use or the host is not here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, not 0: where it is 0, asyncio leaves Nagle's algorithm on, and each answer on a
    # connection that is kept waits for the client's acknowledgement, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not host:
            raise OSError("no address is given; 0.0.0.0 means all")
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host or --port"
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Its URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
