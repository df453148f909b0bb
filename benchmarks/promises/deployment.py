"""What is said of photos after a calibration: alarms, strangers, evaluations, traffic, audits."""

import numpy as np

from benchmarks.promises.calibrations import Circumstance, Figures, K, Outputs, Sentence
from benchmarks.promises.pools import Floats, Pool
from florilege.calibration.calibrate.evaluate import Evaluated
from florilege.calibration.calibrate.score_sources import LabelledPhotos
from florilege.calibration.calibrate.threshold_tables import measure
from florilege.calibration.drift import Monitor, expected_of
from florilege.calibration.monitoring.audit import _audit
from florilege.calibration.monitoring.recalibration import Traffic
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.rejection import RejectionRule, generalised_entropy, unseen_threshold
from florilege.calibration.scores import logsumexp
from florilege.calibration.view import PLAIN

LIVE = 1000  # photos that a monitor watches, and that an evaluation measures


def alarms(random: np.random.Generator, world: Circumstance, record: CalibrationRecord) -> Figures:
    """Whether a monitor ever raises a false alarm."""
    sample = world.pool.draw(random, LIVE, equal=world.equal)
    logits = world.pool.logits[record.head][sample.rows]
    scores, point = record.scores(logits), record.point(PLAIN, record.setting("average_k", K))
    monitor = Monitor(expected_of(record, k=K), alpha=0.05, seed=int(random.integers(2**31)))
    raised = monitor.update(point.sets(scores).sum(axis=1), scores.max(axis=1), logsumexp(logits))
    yield Sentence("the monitor raises a false alarm", "<= 0.055"), bool(raised)


def contradictions(
    random: np.random.Generator, world: Circumstance, record: CalibrationRecord
) -> Figures:
    """Whether an evaluation on photos like those of the calibration speaks against a promise."""
    pool, sample = world.pool, world.pool.draw(random, LIVE, equal=world.equal)
    names = [str(plant) for plant in sample.plants.tolist()]
    logits = {record.head: pool.logits[record.head][sample.rows]}
    outputs = Outputs(logits, pool.labels[sample.rows], observations=names)
    photos = LabelledPhotos.of(record, outputs)
    points = record.requested_points()
    measurement = measure(photos.source(PLAIN, record.scoring), points)
    outputs.close()
    found = [
        Evaluated(point, point.row_on(measurement, index), {}) for index, point in enumerate(points)
    ]
    sentence = Sentence("`evaluate` contradicts any promise that holds", "<= 0.01")
    yield sentence, any(each.contradiction() for each in found)


def traffic(random: np.random.Generator, world: Circumstance, record: CalibrationRecord) -> Figures:
    """Whether thresholds from traffic keep the size; each request shows a plant of its own."""
    if not world.alone:
        return
    rows = world.pool.draw(random, LIVE, equal=world.equal).rows
    logits = world.pool.logits[record.head][rows][:, np.newaxis]
    requests = Traffic(
        requests=lambda: iter([logits]), record=record, judge=None, scoring=record.scoring
    )
    (new,) = requests.thresholds(ks=(K,)).thresholds
    truth = world.pool.truth(PLAIN, record.scoring, None, 0.0)
    deviation = (truth.rest >= new.new_lambda).sum(axis=1).std()
    size = truth.size(new.new_lambda)
    within = abs(size - K) <= 1.96 * deviation / np.sqrt(LIVE)
    yield Sentence("traffic: size within 1.96 standard errors of 3", "0.95"), within


def familiarity(pool: Pool) -> Floats:
    """Three numbers of each photo, ``(photos, 3)``; the last says how familiar its logits are."""
    logits = pool.logits["linear"].astype(np.float64)
    entropy = generalised_entropy(logits, "softmax")
    return np.stack([logits.max(axis=1), logits.std(axis=1), entropy], axis=1)


def strangers(columns: Floats, random: np.random.Generator, photos: int) -> Figures:
    """How often a photo like those of the calibration is suspect."""
    share, rows = 0.01, random.integers(len(columns), size=photos)
    most = (int(share * photos) + 1) / (photos + 1)
    for name, used in (("logits", columns[:, 2:]), ("features", columns)):
        rule = RejectionRule.fit(
            share, used[rows], head="linear", score_kind="softmax", reference_sha256="0"
        )
        values = used[:, 0]
        if rule.centres:
            values = ((used - np.array(rule.centres)) / np.array(rule.scales)).sum(axis=1)
        suspect = values < rule.threshold
        sentence = Sentence(f"suspect by {name}: share of ours beyond that promised", "<= 0")
        yield sentence, float(suspect.mean()) - most


def unknown_species(random: np.random.Generator, photos: int) -> Figures:
    """How often the photos of an unknown species get the answer "none of these"."""
    species = 30
    centres = random.normal(size=(species + 1, 1))  # of how alike a species is to the others
    values = centres + random.normal(size=(species + 1, 50))
    counts = np.maximum(random.multinomial(photos, random.dirichlet(np.ones(species))), 1)
    labels = np.repeat(np.arange(species), np.minimum(counts, 50))
    known = np.concatenate([values[k, : min(count, 50)] for k, count in enumerate(counts)])
    for level in (0.9, 0.95):
        cut = unseen_threshold(known, labels, level)
        if cut is not None:
            sentence = Sentence(f"`none_of_these` for unknown species, {level:g}", f">= {level:g}")
            yield sentence, float((values[-1] <= cut).mean())


def audits(random: np.random.Generator, rows: int) -> Figures:
    """Whether the two intervals of an audit hold the hit rate, the second after every request."""
    rate = 0.93
    hits = random.random(rows) < rate
    feedback = [{"class_id": "a", "set": ["a"] if hit else ["b"]} for hit in hits.tolist()]
    whole = _audit(feedback)
    assert whole is not None
    yield (
        Sentence("audit: `fixed` holds the hit rate", ">= 0.95"),
        whole.fixed[0] <= rate <= whole.fixed[1],
    )
    looks = (_audit(feedback[:count]) for count in range(10, rows + 1, 10))
    always = all(look.anytime[0] <= rate <= look.anytime[1] for look in looks if look is not None)
    yield Sentence("`anytime` holds it after every tenth request", ">= 0.95"), always
