"""The bundle: a folder with one network and all it needs, hashed and replaced atomically."""

from florilege.models.bundle.bundle import Bundle as Bundle
from florilege.models.bundle.bundle import name_classes as name_classes
from florilege.models.bundle.bundle import open_bundle as open_bundle
from florilege.models.bundle.bundle import replace_files as replace_files
from florilege.models.bundle.bundle import reserved as reserved
from florilege.models.bundle.bundle import write_bundle as write_bundle
