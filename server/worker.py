"""A process that looks at photos for `server.processes`.

Each argument, such as ``5:6``, gives the numbers of a line that it inherits; each line gets a
thread. The process ends when they are closed, which also happens when the one that began it ends,
in whatever way. Signals it leaves to that one: many supervisors send them to all of a service.
"""

import signal
import sys
import threading
import traceback

import numpy as np

from models.errors import FlorilegeError
from models.images import Header, ImageError
from models.session import Outputs, Session
from server.lines import Line
from server.memory import tune_malloc


def main(lines: list[Line]) -> None:
    """Open what the first line orders, say so, and look at photos until the lines are closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tune_malloc()
    try:
        order = lines[0].receive()
        session = Session(order.bundle, device=order.device, threads=1)
        side = order.bundle.preprocess.image_size
        session.outputs(np.zeros((1, side, side, 3), dtype=np.uint8))  # the first one takes longer
        lines[0].send((session.provider, session.dimensions))
    except FlorilegeError as error:
        lines[0].send(error)
    except (EOFError, OSError):  # nobody is there any more
        pass
    else:
        for line in lines:
            threading.Thread(target=_answer, args=(line, session)).start()


def _answer(line: Line, session: Session) -> None:
    try:
        while True:
            line.send(_looked(session, *line.receive_photo()))
    except (EOFError, OSError):
        line.close()


def _looked(
    session: Session, photo: Header, max_pixels: int, features: bool
) -> tuple[Outputs, float] | Exception:
    try:
        return session.look(photo, max_pixels=max_pixels, features=features)
    except (ImageError, FlorilegeError) as error:
        return error
    except Exception:  # whatever it is, this process goes on; not every exception can be sent
        return RuntimeError(f"in a process for photos:\n{traceback.format_exc()}")


if __name__ == "__main__":
    main([Line(*map(int, word.split(":"))) for word in sys.argv[1:]])
