"""The bundle: a folder with one network and all it needs, hashed and replaced atomically."""

from florilege.models.bundle.bundle import CALIBRATION as CALIBRATION
from florilege.models.bundle.bundle import MODEL as MODEL
from florilege.models.bundle.bundle import OCCURRENCES as OCCURRENCES
from florilege.models.bundle.bundle import OPENVINO_CALIBRATION as OPENVINO_CALIBRATION
from florilege.models.bundle.bundle import OPENVINO_REFERENCE as OPENVINO_REFERENCE
from florilege.models.bundle.bundle import PREPROCESS as PREPROCESS
from florilege.models.bundle.bundle import REFERENCE as REFERENCE
from florilege.models.bundle.bundle import THUMBNAILS as THUMBNAILS
from florilege.models.bundle.bundle import Bundle as Bundle
from florilege.models.bundle.bundle import Packed as Packed
from florilege.models.bundle.bundle import name_classes as name_classes
from florilege.models.bundle.bundle import open_bundle as open_bundle
from florilege.models.bundle.bundle import replace_files as replace_files
from florilege.models.bundle.bundle import reserved as reserved
from florilege.models.bundle.bundle import set_pictures as set_pictures
from florilege.models.bundle.bundle import unpacked_bundle as unpacked_bundle
from florilege.models.bundle.bundle import write_bundle as write_bundle
from florilege.models.bundle.look_alikes import LOOK_ALIKES as LOOK_ALIKES
from florilege.models.bundle.look_alikes import PairCounts as PairCounts
from florilege.models.bundle.look_alikes import look_alikes_file as look_alikes_file
from florilege.models.bundle.look_alikes import read_look_alikes as read_look_alikes
from florilege.models.bundle.staging import MANIFEST as MANIFEST
from florilege.models.bundle.staging import BundleFolder as BundleFolder
from florilege.models.bundle.staging import sha256_of as sha256_of
