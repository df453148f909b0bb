"""What the server reports about itself: model card, classes, metrics, description."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import RULES
from florilege.models.bundle import open_bundle, replace_files
from florilege.models.classes import ClassTable, Thumbnail
from florilege.models.reference_pictures import pack_thumbnails
from florilege.server.answers.class_list import TaxonTable
from florilege.server.app import create_app
from florilege.server.http import cached_responses
from florilege.server.http.cached_responses import OWN_BYTES
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.http_client import identify, open_client
from tests.server.server_thread import NO_TLS, Running
from tests.server.write_golden import GOLDEN


def test_the_card_names_the_model_as_answers_do_and_lists_every_k(client: TestClient) -> None:
    card = client.get("/v1/model").json()
    answered = client.post("/v1/identify?k=2", content=garden.photo(0)).json()
    assert card["model"] == answered["model"]
    assert len(card["model"]["bundle_sha256"]) == 64
    assert (card["classes"], card["image_size"]) == (12, garden.SIDE)
    assert (card["default_rule"], card["default_k"]) == ("average_k", 3.0)
    assert (card["languages"], card["feedback"]) == (["en", "fr"], False)
    assert card["limits"]["max_body_bytes"] == 2_000_000
    assert card["limits"]["max_images"] == 5
    rules = {rule["rule"]: rule for rule in card["rules"]}
    assert rules.keys() == RULES.keys()
    points = {point["k"]: point for point in rules["average_k"]["points"]}
    assert list(points) == [step / 10 for step in range(10, 121)]
    for key in ("lambda", "expected_size", "hit_rate"):
        assert points[2.0][key] == answered["set"][key]
    assert [point["coverage"] for point in rules["coverage"]["points"]] == [0.9, 0.95]
    several = {entry["images"]: entry for entry in rules["average_k"]["several"]}
    assert list(several) == [2, 3, 4]
    assert [point["k"] for point in several[2]["points"]] == [1, 2, 3, 5, 10]
    assert {entry["fusion"] for entry in several.values()} == {"mean_score"}
    assert rules["top_k"]["several"][0]["fusion"] == "mean_score"
    pair = identify(client, garden.photo(0), garden.photo(0), k=2)["set"]
    result = next(point for point in several[2]["points"] if point["k"] == 2)
    assert {key: result[key] for key in ("lambda", "hit_rate")} == {
        key: pair[key] for key in ("lambda", "hit_rate")
    }


def test_the_card_says_what_the_photos_chose_and_what_to_expect(
    bundle: Path, client: TestClient
) -> None:
    card, record = client.get("/v1/model").json(), read_record(open_bundle(bundle))
    assert card["selection"] == json.loads(record.to_json())["selection"]
    assert card["selection"]["honest_ci95"] is None  # nobody knows which photos the network met
    figures = card["rules"][0]["points"][0]
    assert figures["hit_rate"]["selection_split"] == record.measured.selection_split


def test_the_card_lists_no_more_photos_than_a_request_may_have(bundle: Path) -> None:
    with open_client(bundle, max_images=3) as client:
        rules = client.get("/v1/model").json()["rules"]
    several = {rule["rule"]: tuple(one["images"] for one in rule["several"]) for rule in rules}
    assert several.pop("class_coverage") == ()
    assert set(several.values()) == {(2, 3)}


def test_the_card_is_rendered_once_at_start(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings(bundle=bundle))
    with TestClient(app) as client, monkeypatch.context() as patch:
        first = client.get("/v1/model")
        patch.setattr(app.state.engine, "pipeline", None)
        assert client.get("/v1/model").content == first.content


def test_another_answer_has_another_etag(client: TestClient) -> None:
    lists = ("/v1/classes", "/v1/classes?lang=fr", "/v1/classes?limit=3")
    paths = ["/v1/model", *lists, "/", "/app.js"]
    tags = [client.get(path).headers["etag"] for path in paths]
    assert len(set(tags)) == len(tags)
    for path, other in zip(paths, tags[1:] + tags[:1], strict=True):
        assert client.get(path, headers={"If-None-Match": other}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/model", "/v1/classes", "/v1/classes/1001", "/v1/thumbnails?class_id=1001"),
        *("/", "/app.js"),
    ],
)
def test_what_stays_the_same_is_confirmed_by_its_etag(client: TestClient, path: str) -> None:
    first = client.get(path)
    tag = first.headers["etag"]
    for result in (tag, f'"other", W/{tag}', "*"):
        again = client.get(path, headers={"If-None-Match": result})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_all_classes_are_listed_in_the_order_of_the_model(client: TestClient) -> None:
    content = client.get("/v1/classes").json()
    assert content["total"] == 12
    assert [one["class_id"] for one in content["classes"]] == [f[0] for f in garden.FLOWERS]
    assert content["classes"][3]["training_count"] == 40
    assert content["classes"][3]["taxon"]["ids"] == {"gbif": "301004"}


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("q=ROSE", ["1001", "1002", "1003"]),
        ("q=coquelicot", ["1004"]),
        ("q=asteraceae", ["1010", "1011"]),
        ("q=1007", ["1007"]),
        ("q=nothing", []),
        ("q=", [flower[0] for flower in garden.FLOWERS]),
        ("q=1001%00Rosa", []),
        ("limit=2", ["1001", "1002"]),
        ("q=papaver&limit=1", ["1004"]),
        ("limit=0", []),
    ],
)
def test_classes_are_found_by_id_and_by_any_name(
    client: TestClient, query: str, ids: list[str]
) -> None:
    content = client.get(f"/v1/classes?{query}").json()
    assert [one["class_id"] for one in content["classes"]] == ids
    assert content["total"] >= len(ids)
    if "papaver" in query:
        assert content["total"] == 2


def test_one_class_is_shown_in_the_language_asked_for(client: TestClient) -> None:
    content = client.get("/v1/classes/1002?lang=fr").json()
    assert content["class_id"] == "1002"
    assert content["taxon"]["common_names"] == [{"name": "églantier", "lang": "fr"}]
    header = client.get("/v1/classes/1002", headers={"Accept-Language": "fr"})
    assert header.json() == content
    assert header.headers["vary"].startswith("Accept-Language")


def test_the_pictures_of_the_set_are_where_the_answer_says(client: TestClient) -> None:
    answered = client.post("/v1/identify?k=5", content=garden.photo(3)).json()
    pictures = garden.thumbnails()
    assert answered["results"]
    for result in answered["results"]:
        about = result["taxon"]["thumbnail"]
        assert (about["author"], about["licence"]) == ("A. Botanist", "CC BY 4.0")
        assert result["taxon"]["link"].startswith("https://www.gbif.org/species/")
        response = client.get(f"/{about['url']}")
        assert response.headers["content-type"] == "image/jpeg"
        assert response.headers["cache-control"] == "max-age=3600"
        assert response.content == pictures[result["class_id"]]


def test_a_class_of_which_nothing_is_known_says_so(client: TestClient) -> None:
    nothing = dict.fromkeys(("genus", "family", "link", "thumbnail"))
    assert client.get("/v1/classes/1012").json()["taxon"] == {
        **{"scientific_name": garden.FLOWERS[-1][1], "ids": {"gbif": None}, "common_names": []},
        **nothing,
    }
    for query, code in (
        ("class_id=1012", "thumbnail_not_found"),
        ("class_id=99", "class_not_found"),
        ("class_id=1001&lang=fr", "unknown_parameter"),
        ("", "invalid_parameter"),
    ):
        assert client.get(f"/v1/thumbnails?{query}").json()["code"] == code
    assert client.get("/v1/classes/1012/thumbnail").json()["code"] == "class_not_found"


ODD_IDS = ("a/b", "a", "a/thumbnail", "a/thumbnail/thumbnail", "/", "a//b", "..", "a/../b", "é",
           "e\u0301", "a%2Fb", "a b+c", "?q=1#x", "a\nb", "thumbnail")  # fmt: skip


def test_every_class_and_its_picture_are_reached_whatever_its_id(served: Path) -> None:
    pictures = list(garden.thumbnails().values())
    ids = ODD_IDS[: len(garden.FLOWERS)], ODD_IDS[-len(garden.FLOWERS) :]
    for named in ids:
        table = ClassTable(
            tuple(
                replace(item, id=id_, thumbnail=Thumbnail())
                for item, id_ in zip(garden.classes(), named, strict=True)
            )
        )
        view = dict(zip(named, [*pictures, pictures[0]], strict=True))
        files = {
            "classes.json": table.to_json().encode(),
            "thumbnails.zip": pack_thumbnails(table, view),
        }
        replace_files(served, files)
        # TestClient decodes a path twice
        with (
            Running(served) as running,
            httpx.Client(base_url=running.url, verify=NO_TLS) as client,
        ):
            for entry in client.get("/v1/classes").json()["classes"]:
                id_ = entry["class_id"]
                assert client.get(f"/{entry['taxon']['thumbnail']['url']}").content == view[id_]
                if ".." in id_ or "\n" in id_:  # no path holds these
                    assert entry in client.get("/v1/classes", params={"q": id_}).json()["classes"]
                else:
                    one = client.get(f"/v1/classes/{quote(id_, safe='')}").json()
                    assert {name: one[name] for name in entry} == entry


def test_a_bundle_from_before_pictures_is_served(served: Path) -> None:
    plain = json.loads((served / "classes.json").read_text())
    for entry in plain:
        del entry["link"], entry["thumbnail"]
    replace_files(served, {"classes.json": json.dumps(plain).encode()}, without=["thumbnails.zip"])
    with open_client(served) as client:
        taxon = client.get("/v1/classes/1001").json()["taxon"]
        assert (taxon["link"], taxon["thumbnail"]) == (None, None)
        assert client.get("/v1/thumbnails?class_id=1001").status_code == 404


def test_the_last_lists_of_classes_are_kept_by_question_and_language(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[tuple[Any, ...]] = []

    def find(self: TaxonTable, *asked: Any) -> bytes:
        lists.append(asked)
        return b"{}"

    monkeypatch.setattr(TaxonTable, "find", find)
    room = 3
    monkeypatch.setattr(cached_responses, "LIST_BYTES", room * (OWN_BYTES + len(b"{}")))
    with open_client(bundle) as client:
        for language in ("fr", "fr, ja;q=0.5", "ja, fr;q=0.5, en;q=0.1"):  # no name is Japanese
            client.get("/v1/classes?q=kept", headers={"Accept-Language": language})
        assert lists == [(("fr", "en"), "kept", None)]
        for limit in range(room):
            client.get(f"/v1/classes?q=kept&limit={limit}")
        assert len(lists) == 1 + room
        for limit in range(room):
            client.get(f"/v1/classes?q=kept&limit={limit}")
        assert len(lists) == 1 + room
        client.get("/v1/classes?q=kept", headers={"Accept-Language": "fr"})
        assert len(lists) == 2 + room


def test_metrics_count_sets_and_requests_without_naming_species(bundle: Path) -> None:
    with open_client(bundle) as client:
        sizes = [identify(client, garden.photo(index))["set"]["size"] for index in range(6)]
        least = identify(client, garden.photo(0), min_score=1)["set"]
        client.post("/v1/identify", content=b"no photo")
        client.get("/v1/classes/1001")
        client.get("/nowhere/else")
        text, card = client.get("/metrics").text, client.get("/v1/model").json()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples[("florilege_set_size_count", ())] == 7
    assert samples[("florilege_set_size_sum", ())] == sum(sizes) + least["size"]
    assert samples[("florilege_top_score_count", ())] == 6
    assert samples[("florilege_queue_depth", ())] == 0
    assert samples[("florilege_rejected_total", (("reason", "unsupported_image_type"),))] == 1
    target = next(p for p in card["rules"][0]["points"] if p["k"] == 3.0)["expected_size"]["value"]
    assert samples[("florilege_set_size_target", ())] == target
    assert samples[("florilege_model_info", tuple(sorted(card["model"].items())))] == 1
    for stage in ("queue", "decode", "forward", "decide"):
        name = ("florilege_stage_duration_seconds_count", (("stage", stage),))
        assert samples[name] == 7
    for route, method, code, count in (
        ("/v1/identify", "POST", "200", 7),
        ("/v1/identify", "POST", "415", 1),
        ("/v1/classes/{class_id:path}", "GET", "200", 1),
        ("unknown", "GET", "404", 1),
    ):
        labels = tuple(sorted({"route": route, "method": method, "code": code}.items()))
        assert samples[("florilege_http_requests_total", labels)] == count
    kinds = {name.partition("_")[0] for name, _ in samples}
    assert kinds == {"florilege", "process", "python"}
    outcome = {value for _, labels in samples for _, value in labels}
    assert not outcome & {word for flower in garden.FLOWERS for word in flower[:3]}
    assert "Rosa" not in text


def test_the_description_is_the_golden_one_and_without_a_feedback_store_lacks_only_that(
    bundle: Path, client: TestClient, tmp_path: Path
) -> None:
    """After an intended change: `python -m tests.server.write_golden`, and check the diff."""
    with open_client(bundle, feedback_store=tmp_path) as other:
        content = other.get("/openapi.json").json()
    golden = json.loads(GOLDEN.read_text())
    assert content["paths"] == golden["paths"]
    assert content["components"]["schemas"] == golden["components"]["schemas"]
    content = client.get("/openapi.json").json()
    assert content["paths"] == {k: v for k, v in golden["paths"].items() if k != "/v1/feedback"}
    assert set(golden["components"]["schemas"]) - set(content["components"]["schemas"]) == {
        "FeedbackReceipt"
    }


def test_an_answer_fits_its_own_description(client: TestClient) -> None:
    import jsonschema

    described = client.get("/openapi.json").json()
    answer = identify(client, garden.photo(2), include="scores,rollup,marginals")
    for shape, content in (("Answer", answer), ("ModelCard", client.get("/v1/model").json())):
        jsonschema.validate(content, {**described, "$ref": f"#/components/schemas/{shape}"})


def test_pages_of_allowed_origins_may_call_and_others_may_not(bundle: Path) -> None:
    with open_client(bundle, cors_origins=("https://app.example",)) as client:
        for origin, allowed in (("https://app.example", True), ("https://other.example", False)):
            response = client.get("/v1/model", headers={"Origin": origin})
            assert (response.headers.get("access-control-allow-origin") == origin) is allowed
