"""The server's answers from Python, without a server: what `florilege.load` returns."""

from florilege.server.predictor.photo_input import Photo as Photo
from florilege.server.predictor.predictor import Predictor as Predictor
from florilege.server.predictor.predictor import load as load
