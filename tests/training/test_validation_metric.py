from typing import get_args

import pytest

from florilege.training.config import Metric, MetricName


@pytest.mark.parametrize(
    ("name", "words", "column"),
    [
        ("average_k", "average-2.5 accuracy", "val_average_2.5_sccp_softmax"),
        ("macro_average_k", "macro average-2.5 accuracy", "val_macro_average_2.5_sccp_softmax"),
        ("top_k", "top-2.5 accuracy", "val_top_2.5_sccp"),
        ("macro_top_k", "macro top-2.5 accuracy", "val_macro_top_2.5_sccp"),
    ],
)
def test_a_metric_has_words_and_a_column(name: MetricName, words: str, column: str) -> None:
    metric = Metric(name=name, k=2.5)
    assert str(metric) == words
    assert metric.column_of("sccp", "softmax") == column


@pytest.mark.parametrize("name", get_args(MetricName))
def test_the_metric_of_a_row_is_read_back(name: MetricName) -> None:
    metric = Metric(name=name, k=3.0)
    assert (
        Metric.of({"epoch": 1, metric.column: 3, metric.column_of("linear", "softmax"): 0.5})
        == metric
    )
