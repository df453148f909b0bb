"""A typed client for Florilege's HTTP interface; it needs httpx and nothing else.

    from florilege_client import Client

    with Client("http://127.0.0.1:8000") as client:
        answer = client.identify("photo.jpg", k=5)

`answers` has the types of what comes back, `errors` what is raised instead.
"""

from florilege_client.answers import (
    Answer,
    ClassDetails,
    ClassEntry,
    ClassList,
    Embeddings,
    FeedbackReceipt,
    IdentifyOptions,
    ModelCard,
    SurveyAnswer,
    SurveyOptions,
)
from florilege_client.calls import Photo
from florilege_client.client import AsyncClient, Client
from florilege_client.errors import NoAnswer, Problem, StrangeAnswer, Unreachable
from florilege_client.retrying import Retries

__all__ = [
    "Answer",
    "AsyncClient",
    "ClassDetails",
    "ClassEntry",
    "ClassList",
    "Client",
    "Embeddings",
    "FeedbackReceipt",
    "IdentifyOptions",
    "ModelCard",
    "NoAnswer",
    "Photo",
    "Problem",
    "Retries",
    "StrangeAnswer",
    "SurveyAnswer",
    "SurveyOptions",
    "Unreachable",
]
