"""The same application on Ray Serve: engine, routes and answers of `florilege serve`, in replicas.

    serve run florilege.server.ray_serve:application bundle=/bundles/flora

`docs/scaling.md` says what differs with several processes behind one address.
"""

from typing import Any, Final

from florilege.errors import UsageError
from florilege.hooks import cluster
from florilege.server.app import create_app
from florilege.server.engine import MAX_QUEUE
from florilege.server.process import log_to_stderr
from florilege.server.prometheus import count_alone
from florilege.server.settings import Settings

_SINGLE_WRITER: Final = ("feedback_store", "watch_state")  # paths that only one process may write


def application(arguments: dict[str, Any]) -> Any:
    """A Ray Serve application; ``arguments`` are the settings of `florilege serve`, by name.

    A replica has one thread by default, or ``threads``, and one core for each. The number of
    replicas is set in the configuration file of Ray Serve, ``deploy/ray/serve.yaml``. Raises
    `UsageError` without the extra `ray`, or if a setting needs a single process.
    """
    cluster("ray").demand()
    from ray import serve

    settings = Settings(**{"threads": 1, **arguments})
    if settings.workers != 1:
        raise UsageError("workers: Ray Serve has replicas instead; set their number there")
    if shared := [name for name in _SINGLE_WRITER if getattr(settings, name) is not None]:
        raise UsageError(
            f"{', '.join(shared)}: each process needs its own, and replicas of Ray Serve would "
            "share it; leave it out, or run `florilege serve`"
        )

    def build() -> Any:
        log_to_stderr(settings)
        count_alone()
        return create_app(settings)

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="florilege",
        max_ongoing_requests=2 * MAX_QUEUE,  # the engine's own queue refuses the rest
        ray_actor_options={"num_cpus": settings.threads},
    )
    return deployment.bind()
