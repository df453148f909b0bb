"""What the tests of the server share, for those of plugins."""

from tests.server.conftest import *  # noqa: F403  # fixtures
from tests.server.predict.conftest import *  # noqa: F403
