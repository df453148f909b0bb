import math

import pytest
import torch
import torch.nn.functional as F

from florilege.models.heads import CosineHead, TwoHead, build_head, by_head, output_names


def test_a_cosine_head_gives_cosines_while_training_and_scales_them_in_evaluation() -> None:
    torch.manual_seed(0)
    head, features = CosineHead(4, 3, scale=30.0), torch.randn(5, 4)
    expected = torch.stack([F.cosine_similarity(features, row.unsqueeze(0)) for row in head.weight])
    torch.testing.assert_close(head.train()(features), expected.T)
    torch.testing.assert_close(head.eval()(features), 30.0 * expected.T)
    assert head.state_dict()["scale"].item() == 30.0  # so that it travels with the weights


def test_the_two_heads_are_two_linear_layers_in_the_named_order() -> None:
    torch.manual_seed(0)
    head, features = TwoHead(4, 3), torch.randn(2, 4)
    multi_label, sccp = head(features)
    torch.testing.assert_close(multi_label, head.multi_label(features))
    torch.testing.assert_close(sccp, head.sccp(features))
    assert list(output_names("two_head")) == ["multi_label", "sccp"]


@pytest.mark.parametrize("head", ["linear", "cosine", "two_head"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_head_computes_in_float32_under_autocast(head: str, compiled: bool) -> None:
    torch.manual_seed(0)
    layer, features = build_head(head, 64, 100), torch.randn(5, 64).bfloat16()
    expected = layer(features.float())
    if compiled:
        torch.compiler.reset()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = run(features)
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16  # as before
    torch.testing.assert_close(outputs, expected)


def test_the_multi_label_head_starts_at_k_expected_classes_unless_they_are_all() -> None:
    head = TwoHead(4, 10)
    head.start_multi_label_at(3)
    assert torch.sigmoid(head.multi_label.bias).sum().item() == pytest.approx(3.0)
    assert head.multi_label.bias[0].item() == pytest.approx(math.log(3 / 7))
    before = head.multi_label.bias.clone()
    head.start_multi_label_at(10)
    assert torch.equal(head.multi_label.bias, before)


@pytest.mark.parametrize("average_k", [0, -1, 4])
def test_a_start_at_an_impossible_k_is_refused(average_k: float) -> None:
    with pytest.raises(ValueError, match=r"average_k must be in \(0, 3\]"):
        TwoHead(4, 3).start_multi_label_at(average_k)


def test_an_unknown_head_and_one_without_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="two_head"):
        build_head("softmax", 4, 3)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        build_head("linear", 4, 0)


def test_outputs_are_named_after_their_heads() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    assert by_head("two_head", (one, two)) == {"multi_label": one, "sccp": two}
    assert by_head("cosine", one) == {"cosine": one}
