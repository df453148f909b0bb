"""What several people's answers say together: verdicts, agreement, the rate of wrong labels."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from florilege.calibration.intervals import wilson
from florilege.data.corrections import COLUMNS, ReviewAnswer
from florilege.label_review import Summary, merged_table, verdicts_of


def answer(photo: str, word: str, by: str, corrected: str = "") -> ReviewAnswer:
    return ReviewAnswer(
        photo=photo, label="x", answer=word, corrected=corrected, by=by, split="val"
    )


def right(photo: str, by: str) -> ReviewAnswer:
    return answer(photo, "confirmed", by)


def wrong(photo: str, by: str, class_id: str = "y") -> ReviewAnswer:
    return answer(photo, "corrected", by, class_id)


def undecided(photo: str, by: str) -> ReviewAnswer:
    return answer(photo, "undecided", by)


def class_of(*answers: ReviewAnswer) -> str | None:
    return verdicts_of([[each] for each in answers])["p"].class_id


def test_more_than_half_of_those_who_decided_decide() -> None:
    assert class_of(right("p", "ann")) == "x"
    assert class_of(right("p", "ann"), wrong("p", "bob")) is None
    assert class_of(right("p", "ann"), wrong("p", "bob"), wrong("p", "cy")) == "y"
    assert class_of(wrong("p", "ann"), wrong("p", "bob", "z"), right("p", "cy")) is None
    assert class_of(undecided("p", "ann"), wrong("p", "bob")) == "y"
    assert class_of(undecided("p", "ann")) is None


def test_the_later_answer_of_a_person_replaces_the_earlier() -> None:
    assert class_of(right("p", "ann"), wrong("p", "ann")) == "y"
    assert class_of(right("p", "ann"), undecided("p", "ann")) is None


def test_the_merged_file_has_a_row_for_each_photo_and_leaves_open_ones_undecided() -> None:
    files = [
        [right("a", "ann"), wrong("b", "ann"), right("c", "ann")],
        [right("a", "bob"), wrong("c", "bob")],
    ]
    table = merged_table(verdicts_of(files).values())
    assert tuple(table) == COLUMNS
    assert list(zip(*table.values(), strict=True)) == [
        ("a", "x", "confirmed", "", "ann+bob", "val", ""),
        ("b", "x", "corrected", "y", "ann", "val", ""),
        ("c", "x", "undecided", "", "ann+bob", "val", ""),
    ]


def test_a_photo_of_the_random_sample_stays_one_whichever_other_page_showed_it() -> None:
    by_doubt = [replace(right(name, "ann"), order="doubt") for name in "abc"]
    at_random = [replace(right("b", "bob"), order="random")]
    for files in ([by_doubt, at_random], [at_random, by_doubt]):
        table = merged_table(verdicts_of(files).values())
        orders = dict(zip(table["photo"], table["order"], strict=True))
        assert orders == {"a": "doubt", "b": "random", "c": "doubt"}


def test_a_correction_to_the_label_itself_confirms_it() -> None:
    (verdict,) = verdicts_of([[wrong("p", "ann", "x")]]).values()
    assert not verdict.wrong
    assert merged_table([verdict])["answer"] == ["confirmed"]


def test_the_rate_is_of_the_random_sample_and_agreement_of_what_two_decided() -> None:
    sample = [f"s{number}" for number in range(10)]
    files = [
        [*(right(name, "ann") for name in sample[:6]), wrong("s6", "ann"), undecided("s7", "ann")],
        [right("s0", "bob"), wrong("s1", "bob"), wrong("s6", "bob"), undecided("s2", "bob")],
        [wrong(f"doubtful{number}", "ann") for number in range(20)],
    ]
    sums = Summary.of(verdicts_of(files), sample)
    assert (sums.photos, sums.decided, sums.wrong) == (28, 26, 21)
    assert list(sums.open) == ["s1", "s7"]
    assert (sums.shared, sums.agreed, sums.agreement) == (3, 2, 2 / 3)
    assert (sums.sample, sums.sample_decided, sums.sample_wrong) == (10, 6, 1)
    assert sums.wrong_rate == 1 / 6
    assert sums.ci95 == wilson(1, 6)
    assert sums.figures()["wrong_rate"] == {
        "value": 1 / 6, "ci95": wilson(1, 6), "rows": 6, "sample": 10
    }  # fmt: skip


def test_what_other_orders_drew_of_the_sample_tells_no_rate_unless_all_is_decided() -> None:
    sample = [f"s{number}" for number in range(40)]
    doubtful = [replace(wrong(sample[row], "ann"), order="doubt") for row in (3, 20, 30)]
    at_random = [replace(right(name, "bob"), order="random") for name in sample]

    def counts(*files: Sequence[ReviewAnswer]) -> tuple[int, int]:
        sums = Summary.of(verdicts_of(files), sample)
        return sums.sample_wrong, sums.sample_decided

    assert counts(doubtful) == (0, 0)  # most doubtful labels are wrong
    assert counts(doubtful, at_random[4:10]) == (0, 6)
    again = replace(doubtful[0], order="random")  # shown again by the page of the sample
    assert counts(doubtful, [*at_random[:3], again, *at_random[4:10]]) == (1, 10)
    assert counts([replace(each, order="doubt") for each in at_random]) == (0, 40)


def test_photos_of_one_plant_widen_the_interval() -> None:
    sample = [f"s{number}" for number in range(40)]
    answers = [wrong(name, "a") if row % 20 < 4 else right(name, "a")
               for row, name in enumerate(sample)]  # fmt: skip
    verdicts = verdicts_of([answers])
    alone = Summary.of(verdicts, sample).ci95
    related = Summary.of(verdicts, sample, np.arange(40) // 4).ci95
    assert alone is not None
    assert related is not None
    assert related[0] < alone[0] < alone[1] < related[1]


def test_without_a_decided_photo_of_the_sample_there_is_no_rate() -> None:
    sums = Summary.of(verdicts_of([[wrong("other", "ann"), undecided("s", "ann")]]), ["s"])
    assert (sums.wrong_rate, sums.ci95, sums.agreement) == (None, None, None)


def test_the_label_is_the_one_that_was_shown_last() -> None:
    again = ReviewAnswer(photo="p", label="z", answer="confirmed", by="ann")
    (verdict,) = verdicts_of([[right("p", "ann"), right("p", "bob")], [again]]).values()
    assert verdict.label == "z"
