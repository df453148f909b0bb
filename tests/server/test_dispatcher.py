"""Connections are given to the worker that has the fewest."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from florilege.errors import UsageError
from florilege.server.process import Dispatcher, bind
from tests.server.server_thread import wait_for


@dataclass
class Worker:
    """The end of a channel that a worker has, and the connections that have arrived there."""

    ready: bool = True
    is_late: bool = False
    connections_given: int = 0
    closed: int = 0
    taken: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.channel, self._end = socket.socketpair()
        self.channel.setblocking(False)
        self._end.setblocking(False)

    def connections(self) -> int:
        return self.connections_given - self.closed

    def take(self) -> int:
        """How many have arrived so far."""
        while True:
            try:
                message, handles, _, _ = socket.recv_fds(self._end, 1, 1)
            except BlockingIOError:
                return len(self.taken)
            assert message == b"+"
            self.taken += [socket.socket(fileno=handle) for handle in handles]

    def die(self) -> None:
        self._end.close()

    def close(self) -> None:
        for each in (self.channel, self._end, *self.taken):
            each.close()


class Port:
    """A dispatcher with its workers; ``connect`` opens connections that stay open."""

    def __init__(self, stack: ExitStack, workers: int) -> None:
        self._stack = stack
        listener = bind("127.0.0.1", 0)
        self.address = listener.getsockname()
        self.workers = [Worker() for _ in range(workers)]
        self.dispatcher = Dispatcher(listener, self.workers)
        self.dispatcher.start()
        for worker in self.workers:
            stack.callback(worker.close)
        stack.callback(self.dispatcher.close)

    def connect(self, count: int) -> list[socket.socket]:
        total = sum(worker.connections_given for worker in self.workers)
        opened = [socket.create_connection(self.address, timeout=15) for _ in range(count)]
        for each in opened:
            self._stack.enter_context(each)
        wait_for(lambda: sum(worker.connections_given for worker in self.workers) == total + count)
        return opened


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack, 4)


@pytest.mark.parametrize("connections", [8, 32, 128])
def test_connections_fall_evenly(port: Port, connections: int) -> None:
    port.connect(connections)
    assert [worker.take() for worker in port.workers] == [connections // 4] * 4


def test_a_worker_whose_connections_end_gets_the_next(port: Port) -> None:
    port.connect(8)
    port.workers[2].closed = 2
    port.connect(2)
    assert [worker.take() for worker in port.workers] == [2, 2, 4, 2]


def test_workers_that_died_or_load_get_none(port: Port) -> None:
    port.workers[0].die()
    port.workers[1].ready = False
    port.connect(4)
    assert [worker.take() for worker in port.workers[1:]] == [0, 2, 2]


def test_a_worker_that_stands_still_gets_none_while_another_runs(port: Port) -> None:
    for worker in port.workers[:3]:
        worker.is_late = True
    port.connect(3)
    assert [worker.take() for worker in port.workers] == [0, 0, 0, 3]
    port.workers[3].is_late = True
    port.connect(3)
    assert [worker.take() for worker in port.workers] == [1, 1, 1, 3]


def test_a_worker_that_takes_nothing_more_is_passed_over(port: Port) -> None:
    full = port.workers[0]
    with suppress(BlockingIOError):
        while True:
            full.channel.send(bytes(1024))
    port.connect(6)
    assert full.connections_given == 0
    assert [worker.take() for worker in port.workers[1:]] == [2, 2, 2]


def test_small_answers_do_not_wait_for_the_client(port: Port) -> None:
    """Nagle's algorithm is off, whatever the loop of the worker does."""
    port.connect(4)
    for worker in port.workers:
        worker.take()
        (connection,) = worker.taken
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connection.proto == socket.IPPROTO_TCP


def test_a_connection_is_closed_where_no_worker_is_left(port: Port) -> None:
    for worker in port.workers:
        worker.die()
    client = socket.create_connection(port.address, timeout=15)
    with client:
        assert client.recv(1) == b""


def test_no_connection_is_lost_where_many_come_before_a_worker_looks(port: Port) -> None:
    for worker in port.workers:
        worker.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least: a few
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(port.address, timeout=15))
        wait_for(lambda: sum(worker.take() for worker in port.workers) == 60)
    assert all(worker.taken for worker in port.workers)


def test_a_port_closes_while_a_connection_waits_for_a_worker(port: Port) -> None:
    for worker in port.workers:
        worker.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    clients = [socket.create_connection(port.address, timeout=15) for _ in range(60)]
    port.dispatcher.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(port.address, timeout=15)
    for client in clients:
        client.close()


def test_of_two_servers_that_start_together_on_one_port_the_second_is_told() -> None:
    first = bind("127.0.0.1", 0)
    second = bind(*first.getsockname())  # nobody listens yet
    dispatchers = [Dispatcher(listener, []) for listener in (first, second)]
    dispatchers[0].start()
    with pytest.raises(UsageError, match=f"port {first.getsockname()[1]}: .* in use; .*--port"):
        dispatchers[1].start()
    for dispatcher in dispatchers:
        dispatcher.close()


def test_a_closed_port_refuses(port: Port) -> None:
    port.dispatcher.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(port.address, timeout=15)
