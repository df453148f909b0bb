"""`florilege.server.ray_serve` on this machine: ``with_ray LINK PORT REPLICAS``.

SIGHUP deploys the bundle that the link then names.
"""

import signal
import sys
from pathlib import Path
from typing import Any

from florilege.plugins.ray import demand_ray


def main() -> None:
    """Serve until it is killed."""
    link, port, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # Ray's threads must not get it
    ray = demand_ray()
    from ray import serve

    from florilege.server.ray_serve import application

    def deploy() -> None:
        settings: dict[str, Any] = {"bundle": str(link.resolve()), "device": "cpu", "threads": 1}
        deployment = application(settings)._bound_deployment.options(num_replicas=count)
        serve.run(deployment.bind(), name="florilege", route_prefix="/")

    ray.init(address="local", num_cpus=2 * count, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    while True:
        deploy()
        signal.sigwait({signal.SIGHUP})


if __name__ == "__main__":
    main()
