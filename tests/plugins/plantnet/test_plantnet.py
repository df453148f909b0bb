"""The route in the format of the Pl@ntNet API, called as apps written for that API do."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.plugins.plantnet.plantnet_routes import MAX_ORGAN_LENGTH
from florilege.plugins.plantnet.plantnet_schema import UNLIMITED
from florilege.server.engine import Engine
from tests.server import garden
from tests.server.http.test_api_keys import line
from tests.server.http_client import identify, open_client

ROSE, POPPY = garden.photo(0), garden.photo(3)


@pytest.fixture(scope="module")
def app(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    roses = tmp_path_factory.mktemp("lists") / "weurope.txt"
    roses.write_text("1001\n1002\n1003\n")
    with open_client(bundle, plantnet=True, lists=(str(roses),), max_pixels=2_000_000) as client:
        yield client


def ask(
    client: TestClient,
    *photos: bytes,
    project: str = "all",
    organs: tuple[str, ...] = (),
    **query: Any,
) -> Any:
    """A form as browsers and phones send it: the organs, then the photos, names repeated."""
    parts: list[Any] = [("organs", (None, organ)) for organ in organs]
    parts += [("images", (f"image_{i}.jpeg", each, "image/jpeg")) for i, each in enumerate(photos)]
    params = {name.replace("_", "-"): value for name, value in query.items()}
    return client.post(f"/v2/identify/{project}", params=params, files=parts)


def test_an_answer_has_every_field_apps_read_and_the_set_beside(app: TestClient) -> None:
    answer = ask(
        app, ROSE, POPPY, organs=("flower", "leaf"), api_key="2b10", lang="fr", no_reject="true"
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    content = answer.json()
    ours = identify(app, ROSE, POPPY, lang="fr", include="scores")
    assert content["query"] == {
        "project": "all",
        "images": [hashlib.md5(photo).hexdigest() for photo in (ROSE, POPPY)],
        "organs": ["flower", "leaf"],
        "includeRelatedImages": False,
        "noReject": True,
        "type": None,
    }
    assert (content["language"], content["preferedReferential"]) == ("fr", "all")
    assert (content["predictedOrgans"], content["version"]) == ([], "garden 2026.11")
    assert content["remainingIdentificationRequests"] == UNLIMITED
    scores = [each["score"] for each in content["results"]]
    assert scores == [each["score"] for each in ours["results"]]
    assert [each["inSet"] for each in content["results"]] == [e["in_set"] for e in ours["results"]]
    assert content["florilege"]["set"] == ours["set"]
    assert content["florilege"]["id"] == answer.headers["x-request-id"]
    best, first = content["results"][0], ours["results"][0]["taxon"]
    assert content["bestMatch"] == best["species"]["scientificName"] == first["scientific_name"]
    assert best == {
        "score": ours["results"][0]["score"],
        "species": {
            "scientificNameWithoutAuthor": first["scientific_name"],
            "scientificNameAuthorship": "",
            "scientificName": first["scientific_name"],
            "genus": name(first["genus"]),
            "family": name(first["family"]),
            "commonNames": [each["name"] for each in first["common_names"]],
        },
        "gbif": {"id": first["ids"]["gbif"]},
        "inSet": True,
    }
    (unknown,) = [e for e in content["results"] if "gbif" not in e]
    assert unknown["species"]["genus"] == unknown["species"]["family"] == name("")


def name(word: str) -> dict[str, str]:
    """A name without authors."""
    return {
        "scientificNameWithoutAuthor": word,
        "scientificNameAuthorship": "",
        "scientificName": word,
    }


def test_the_list_is_sorted_shortened_and_filled_up_with_species_outside_the_set(
    app: TestClient,
) -> None:
    whole = ask(app, ROSE).json()
    scores = [each["score"] for each in whole["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == len(garden.FLOWERS)
    size = whole["florilege"]["set"]["size"]
    assert [each["inSet"] for each in whole["results"]] == [i < size for i in range(len(scores))]
    short = ask(app, ROSE, nb_results=1, detailed="true", type="kt").json()
    assert len(short["results"]) == 1
    assert short["query"]["type"] == "kt"
    assert short["florilege"]["set"]["truncated"] is (size > 1)


def test_a_project_is_a_list(app: TestClient) -> None:
    content = ask(app, POPPY, project="weurope").json()
    assert {each["species"]["genus"]["scientificName"] for each in content["results"]} == {"Rosa"}
    assert content["query"]["project"] == content["preferedReferential"] == "weurope"
    assert content["florilege"]["warnings"][0]["code"] == "list_not_calibrated"


def test_names_are_english_unless_the_address_says_otherwise(app: TestClient) -> None:
    files = {"images": ("a.jpeg", ROSE)}
    answer = app.post("/v2/identify/all", files=files, headers={"Accept-Language": "fr"})
    assert answer.json()["language"] == "en"


def test_organs_that_are_missing_too_many_or_long_change_nothing(app: TestClient) -> None:
    assert ask(app, ROSE).json()["query"]["organs"] == ["auto"]
    long = "x" * (MAX_ORGAN_LENGTH + 1)
    content = ask(app, ROSE, organs=(long, "leaf")).json()
    assert content["query"]["organs"] == [long[:MAX_ORGAN_LENGTH]]
    assert content["results"] == ask(app, ROSE, organs=("leaf",)).json()["results"]


def test_a_photo_of_something_else_is_no_species_unless_asked_otherwise(app: TestClient) -> None:
    refused = ask(app, garden.DULL)
    assert refused.status_code == 404
    assert refused.json() == {
        "statusCode": 404,
        "error": "Not Found",
        "message": "Species not found",
        "code": "species_not_found",
    }
    content = ask(app, garden.DULL, no_reject="true").json()
    assert content["florilege"]["rejection"]["verdict"] == "suspect"
    assert content["bestMatch"]


def test_pictures_come_with_absolute_addresses_that_work(app: TestClient) -> None:
    content = ask(app, ROSE, include_related_images="true").json()
    labels = {each["species"]["scientificName"]: each["images"] for each in content["results"]}
    assert labels["<i>Ignota</i> & co"] == []
    (picture,) = labels["Rosa rubra"]
    assert picture["citation"] == "A. Botanist, CC BY 4.0"
    assert set(picture["url"].values()) == {"http://testserver/v1/thumbnails?class_id=1001"}
    assert app.get(picture["url"]["m"]).headers["content-type"] == "image/jpeg"


@pytest.mark.parametrize(
    ("query", "photos", "status", "code"),
    [
        ({"nb_results": "many"}, [ROSE], 400, "invalid_parameter"),
        ({"lang": "not a language"}, [ROSE], 400, "invalid_parameter"),
        ({}, [ROSE] * 6, 422, "wrong_number_of_images"),
        ({}, [b"<html>"], 415, "unsupported_image_type"),
        ({}, [ROSE[:-200]], 422, "image_unreadable"),
        ({}, [garden.encoded(np.zeros((1500, 1500, 3), np.uint8))], 413, "image_too_large"),
    ],
)
def test_errors_have_their_shape(
    app: TestClient,
    query: dict[str, Any],
    photos: list[bytes],
    status: int,
    code: str,
) -> None:
    refused = ask(app, *photos, **query)
    document = refused.json()
    assert (refused.status_code, document["code"]) == (status, code)
    assert document["statusCode"] == status
    assert document["error"]
    assert document["message"]
    assert set(document) == {"statusCode", "error", "message", "code"}


def test_a_body_that_is_no_form_is_refused_before_it_is_read(app: TestClient) -> None:
    refused = app.post("/v2/identify/all", json={"images": ["https://example.org/a.jpeg"]})
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed_request")
    missing = app.post("/v2/identify/all", files={"organs": (None, "leaf")})
    assert missing.json()["code"] == "wrong_number_of_images"


def test_the_key_may_stand_in_the_address_of_this_route_alone_and_is_never_logged(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").write_text(line("app", "sésamo", "2/hour"))
    caplog.set_level("DEBUG")
    with open_client(bundle, plantnet=True, keys_file=tmp_path / "keys", access_log=True) as client:
        assert ask(client, ROSE).json()["statusCode"] == 401
        assert ask(client, ROSE, api_key="wrong").json()["code"] == "key_unknown"
        in_address = ask(client, ROSE, api_key="sésamo")
        assert in_address.json()["remainingIdentificationRequests"] == 1
        assert in_address.headers["ratelimit"].startswith('"key";r=1;')
        headers = [(b"X-API-Key", "sésamo".encode())]
        files = {"images": ("a.jpeg", ROSE)}
        in_header = client.post("/v2/identify/all", files=files, headers=headers)
        assert in_header.json()["remainingIdentificationRequests"] == 0
        late = ask(client, ROSE, api_key="sésamo")
        assert late.json()["code"] == "rate_limited"
        assert 3590 < int(late.headers["retry-after"]) <= 3600
        other = client.get("/v1/model", params={"api-key": "sésamo"})
        assert other.status_code == 401
        text = client.get("/metrics").text
    ours = [each for each in caplog.records if each.name.startswith("florilege")]
    assert len(ours) >= 5
    for result in (text, *[f"{each.getMessage()} {each.__dict__}" for each in ours]):
        assert "samo" not in result


def test_the_route_is_described_where_it_is_on_and_absent_where_it_is_off(
    app: TestClient, client: TestClient, bundle: Path, tmp_path: Path
) -> None:
    import jsonschema  # takes a second, in each process of tests

    assert client.post("/v2/identify/all", files={"images": ROSE}).status_code == 404
    assert not [path for path in client.get("/openapi.json").json()["paths"] if "v2" in path]
    document = app.get("/openapi.json").json()
    assert "securitySchemes" not in document["components"]
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert not [one for one in operations if "security" in one]  # this server needs no key
    operation = document["paths"]["/v2/identify/{project}"]["post"]
    for answer in (
        ask(app, ROSE),
        ask(app, ROSE, include_related_images="true"),
        ask(app, b"<html>"),
    ):
        (media,) = operation["responses"][str(answer.status_code)]["content"].values()
        jsonschema.validate(answer.json(), {**document, **media["schema"]})
    (tmp_path / "keys").write_text(line("a", "k1"))
    secured = open_client(bundle, plantnet=True, keys_file=tmp_path / "keys").app.openapi()  # type: ignore[attr-defined]  # a FastAPI
    result = secured["paths"]["/v2/identify/{project}"]["post"]["security"]
    assert result[0] == {"query": []}
    assert {"query": []} not in secured["paths"]["/v1/identify"]["post"]["security"]
    assert set(secured["components"]["securitySchemes"]) == {"query", "bearer", "header"}


PUBLISHED = [  # project, rest of the address, parts of the form in their order
    ("all", "", ("images", "images", "organs", "organs")),
    ("all", "&include-related-images=true&lang=fr", ("organs", "images", "organs", "images")),
    ("all", "&lang=fr&include-related-images=FALSE", ("images", "images", "organs", "organs")),
    ("the-plant-list", "&nb-results=5&no-reject=true", ("images", "images")),
    ("weurope", "&nb-results=5", ("images", "organs")),
    ("useful", "&nb-results=5", ("images",)),
]
"""Of the examples of github.com/plantnet/my.plantnet, and of its benchmark of projects."""


@pytest.mark.parametrize(("project", "more", "parts"), PUBLISHED)
def test_published_clients_get_what_they_read(
    app: TestClient, project: str, more: str, parts: tuple[str, ...]
) -> None:
    files: list[Any] = [
        (name, ("image_1.jpeg", ROSE, "image/jpeg") if name == "images" else (None, "auto"))
        for name in parts
    ]
    answer = app.post(f"/v2/identify/{project}?api-key=2b10{more}", files=files)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert content["query"]["project"] == project
    for organ in content["predictedOrgans"]:
        assert organ.keys() >= {"organ", "score"}
    for result in content["results"]:
        species = result["species"]
        assert species["scientificNameWithoutAuthor"].split()[0]
        assert {"scientificName", "scientificNameAuthorship", "commonNames"} < species.keys()
        assert species["family"].keys() >= {"scientificName", "scientificNameWithoutAuthor"}
        assert ("images" in result) is ("images=true" in more)
        for picture in result.get("images", []):
            assert picture.keys() >= {"license", "author", "citation"}
            assert picture["url"].keys() == {"o", "m", "s"}
            assert picture["date"] == {"timestamp": 0, "string": ""}


def test_a_project_that_is_no_list_means_every_species_and_is_warned_of(app: TestClient) -> None:
    every = ask(app, POPPY).json()
    content = ask(app, POPPY, project="k-world-flora").json()
    assert content["results"] == every["results"]
    assert content["florilege"]["set"] == every["florilege"]["set"]
    assert content["query"]["project"] == "k-world-flora"
    assert content["preferedReferential"] == "all"
    assert every["florilege"]["warnings"] == []
    (warning,) = content["florilege"]["warnings"]
    assert warning["code"] == "project_unknown"
    assert "'k-world-flora'" in warning["detail"]


def test_projects_are_the_lists_and_their_species_can_be_listed(app: TestClient) -> None:
    content = app.get("/v2/projects?lang=fr&type=kt&lat=43.6&lon=3.9&api-key=2b10").json()
    assert [(each["id"], each["speciesCount"]) for each in content] == [("all", 12), ("weurope", 3)]
    assert {"title", "description"} < content[0].keys()
    roses = app.get("/v2/projects/weurope/species?lang=fr&api-key=2b10").json()
    assert [each["id"] for each in roses] == ["1001", "1002", "1003"]
    assert roses[1] == {
        "id": "1002",
        "commonNames": ["églantier"],
        "scientificNameWithoutAuthor": "Rosa canina",
        "scientificNameAuthorship": "",
        "gbifId": 301002,
        "powoId": None,
        "iucnCategory": None,
    }
    every = app.get("/v2/species").json()
    assert len(every) == 12
    assert every[-1]["gbifId"] is None
    assert app.get("/v2/projects/all/species").json() == every
    assert app.get("/v2/projects/k-world-flora/species").json() == every
    for query, ids in (
        ("prefix=papaver&lang=en", ["1004", "1005"]),
        ("page=2&pageSize=5", ["1006", "1007", "1008", "1009", "1010"]),
        ("page=2&pageSize=2&prefix=R", ["1003", "1008"]),
        ("pageSize=5", [each["id"] for each in every]),
        ("page=9&pageSize=5", []),
    ):
        assert [each["id"] for each in app.get(f"/v2/species?{query}").json()] == ids
    assert app.get("/v2/species?page=0&pageSize=5").json()["code"] == "invalid_parameter"
    again = app.get("/v2/species")
    confirmed = app.get("/v2/species", headers={"If-None-Match": again.headers["etag"]})
    assert confirmed.status_code == 304


def test_languages_and_the_status_are_told(app: TestClient) -> None:
    assert app.get("/v2/languages").json() == ["en", "fr"]
    assert app.get("/v2/_status").json() == {"status": "ok"}
    engine: Engine = app.app.state.engine  # type: ignore[attr-defined]  # the application
    before = engine.state
    engine.leave()
    left = app.get("/v2/_status")
    engine.state = before
    document = left.json()
    assert (left.status_code, document["statusCode"], document["code"]) == (503, 503, "draining")


def test_the_quota_is_the_rate_of_the_key(app: TestClient, bundle: Path, tmp_path: Path) -> None:
    without = app.get("/v2/quota/daily?day=2026-11-23&api-key=2b10").json()
    assert without["day"] == f"{datetime.now(UTC):%F}"
    unlimited = {"count": 0, "total": UNLIMITED, "remaining": UNLIMITED}
    assert without["quota"] == {"identify": unlimited}
    (tmp_path / "keys").write_text(line("app", "k1", "5/hour"))
    with open_client(bundle, plantnet=True, keys_file=tmp_path / "keys") as client:
        assert client.get("/v2/_status").status_code == 200
        for path in ("projects", "species", "projects/all/species", "languages", "quota/daily"):
            refused = client.get(f"/v2/{path}")
            assert (refused.status_code, refused.json()["statusCode"]) == (401, 401)
        assert ask(client, ROSE, api_key="k1").status_code == 200
        content = client.get("/v2/quota/daily?api-key=k1").json()
        assert content["quota"]["identify"] == {"count": 2, "total": 5, "remaining": 3}
