"""``predict --ray`` and ``calibrate --ray``: photos spread over the machines of a Ray cluster."""

from florilege.hooks import Cluster, hookimpl
from florilege.plugins.ray.ray_tasks import demand_ray, spread


@hookimpl
def clusters() -> dict[str, Cluster]:
    """Ray, whose library is imported on the first use."""
    return {"ray": Cluster(demand=demand_ray, spread=spread)}
