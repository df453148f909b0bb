import numpy as np
import torch

from florilege.training.optimisation.mixup import Mixture


def test_a_batch_is_mixed_alike_whenever_it_comes() -> None:
    one, again = (Mixture.draw(3, 1, 5, alpha=0.4, size=8) for _ in range(2))
    assert one.share == again.share
    assert torch.equal(one.partners, again.partners)
    others = [
        Mixture.draw(*place, alpha=0.4, size=8).share for place in ((4, 1, 5), (3, 2, 5), (3, 1, 6))
    ]
    assert one.share not in others


def test_partners_are_each_picture_once() -> None:
    assert sorted(Mixture.draw(0, 0, 0, alpha=1.0, size=9).partners.tolist()) == list(range(9))


def test_shares_are_those_of_the_beta_distribution() -> None:
    shares = np.array([Mixture.draw(0, 0, batch, alpha=0.4, size=2).share for batch in range(4000)])
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / (4 * (2 * 0.4 + 1))) < 0.01  # of Beta(a, a)


def test_pictures_and_labels_are_mixed_in_the_same_shares() -> None:
    pictures = torch.tensor([[0], [100], [200]], dtype=torch.uint8)
    mixture = Mixture(0.75, torch.tensor([1, 2, 0]))
    assert mixture.mix(pictures).tolist() == [[25.0], [125.0], [150.0]]
    targets = mixture.targets(torch.tensor([0, 1, 1]), classes=3)
    assert targets.tolist() == [[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.25, 0.75, 0.0]]
