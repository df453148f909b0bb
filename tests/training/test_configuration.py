from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from florilege.errors import UsageError
from florilege.models.images import Preprocess
from florilege.training.config import TrainConfig
from florilege.training.configuration import (
    _from_plain,
    _merge,
    _read_yaml,
    resolve,
    to_yaml,
)
from florilege.training.recipes import RECIPES


def _file(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text)
    return path


def test_flags_win_over_file_over_recipe_over_defaults(tmp_path: Path) -> None:
    file = _file(tmp_path, "recipe: demo\nepochs: 7\nseed: 5\noptimiser: {momentum: 0.8}\n")
    config = resolve(
        {"data": "x", "epochs": 3, "seed": None}, overrides=["augment.flip=0.25"], config=file
    )
    recipe = RECIPES["demo"]
    assert config.epochs == 3  # flag over file over recipe
    assert config.seed == 5  # file over default; the flag was not given
    assert config.augment.flip == 0.25  # --set over recipe
    assert config.optimiser.momentum == 0.8  # file, beside the recipe's other settings
    assert config.optimiser.learning_rate == recipe.settings["optimiser"]["learning_rate"]
    assert config.device == TrainConfig(data="x").device  # default
    assert config.data == "x"  # flag over the recipe's own data


def test_a_recipe_flag_wins_over_the_recipe_of_a_file(tmp_path: Path) -> None:
    file = _file(tmp_path, "recipe: demo\n")
    config = resolve({"recipe": "cifar100-avg-k5", "data": "x"}, config=file)
    assert (config.recipe, config.backbone) == ("cifar100-avg-k5", "densenet40_40")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resolved_configuration_is_itself_a_valid_file(recipe: str, tmp_path: Path) -> None:
    config = resolve({"recipe": recipe, "data": "some/folder"})
    file = _file(tmp_path, to_yaml(config))
    assert resolve({}, config=file) == config


AVERAGE = RECIPES["cifar100-avg-k5"].settings["loss"]


@pytest.mark.parametrize(
    ("flags", "overrides", "loss"),
    [
        # another name drops the parameters of the recipe's loss, the same name keeps them
        ({"loss": "cross_entropy"}, ["loss.k=2"], {"name": "cross_entropy", "k": 2}),
        ({"loss": AVERAGE["name"]}, ["loss.alpha=2"], {**AVERAGE, "alpha": 2}),
        # a parameter may be set before the name, and for the default loss without one
        ({}, ["loss.gamma=1", "loss.name=focal"], {"name": "focal", "gamma": 1}),
        ({"recipe": None}, ["loss.a=0.5"], {"name": "cross_entropy", "a": 0.5}),
    ],
)
def test_parameters_belong_to_the_loss_they_were_set_for(
    flags: dict[str, Any], overrides: list[str], loss: dict[str, Any]
) -> None:
    options = {"recipe": "cifar100-avg-k5", "data": "x", **flags}
    assert resolve(options, overrides=overrides).loss == loss


def test_merging_goes_down_into_nested_settings_and_changes_neither_side() -> None:
    below: dict[str, Any] = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    above: dict[str, Any] = {"a": {"c": {"f": 4}}, "e": None}
    assert _merge(below, above) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": None}
    assert below == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=1e-4", 1e-4),
        ("a=2E3", 2000.0),
        ("a=true", True),
        ("a=null", None),
        ("a=[1, 2e1]", [1, 20.0]),
        ("a=three", "three"),
        ("a=x=y", "x=y"),
    ],
)
def test_overrides_are_read_as_yaml_and_numbers_as_numbers(text: str, value: object) -> None:
    result = resolve({"data": "x"}, overrides=[f"loss.{text}"]).loss["a"]
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize("text", ["alpha", "=1", "loss.=1", ".alpha=1", "", "a=[1"])
def test_an_override_without_a_name_or_a_yaml_value_is_refused(text: str) -> None:
    message = "the value is not YAML" if "[" in text else "--set takes name=value"
    with pytest.raises(UsageError, match=message):
        resolve({"data": "x"}, overrides=[text])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "epoch=3",
            r"unknown setting epoch; allowed: data, recipe, back.*; did you mean epochs\?",
        ),
        ("lr=3", r"setting lr; allowed: data.*; did you mean optimiser.learning_rate\?"),
        ("optimisr.lr=3", r"setting optimisr; allowed: data.*; did you mean optimiser\?"),
        ("validation.avrage_k=3", "unknown setting validation.avrage_k; allowed: metric, k, pat"),
        ("zzz=3", "unknown setting zzz; allowed: data, recipe"),
        (
            "optimiser.rate=3",
            r"optimiser.rate; allowed: na.*; did you mean optimiser.learning_rate or .*\?",
        ),
        ("optimiser=3", "optimiser must hold settings by name, got 3"),
        ("epochs=many", "epochs must be a whole number >= 0, got 'many'"),
        ("epochs=2.5", "epochs must be a whole number >= 0, got 2.5"),
        ("epochs=true", "epochs must be a whole number >= 0, got True"),
        ("optimiser.nesterov=1", "optimiser.nesterov must be true or false, or null, got 1"),
        ("backbone=null", "backbone must be text, got None"),
        (
            "loss=focal",
            "loss must hold settings by name, got 'focal'; did you mean loss.name=focal",
        ),
        ("optimiser=adamw", "by name, got 'adamw'; did you mean optimiser.name=adamw?"),
        ("augment=strong", "augment must hold settings by name, got 'strong'$"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_full_name(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve({"data": "flora"}, overrides=[override])


def test_numbers_are_read_in_the_type_of_the_setting() -> None:
    config = resolve(
        {"data": "x"},
        overrides=["epochs=3.0", "optimiser.momentum=0", "optimiser.nesterov=false"],
    )
    assert (type(config.epochs), type(config.optimiser.momentum)) == (int, float)


@pytest.mark.parametrize(
    ("given", "side"),
    [
        ({}, 48),
        ({"image_size": 224}, 224),
        ({"recipe": "small-photos"}, 96),
        ({"backbone": "vit_b_32"}, 64),
        ({"backbone": "inception_v3"}, 75),
        ({"data": "."}, 224),  # of any size
        ({"data": "no/such/folder"}, 224),
    ],
)
def test_the_data_give_the_default_picture_size(given: dict[str, Any], side: int) -> None:
    assert resolve({"data": "flora:train=40", **given}).image_size == side


LITE0: dict[str, Any] = {"backbone": "timm:tf_efficientnet_lite0"}
HALF = (0.5, 0.5, 0.5)


def test_the_network_gives_the_default_preprocessing() -> None:
    expected = Preprocess(
        image_size=224, crop_fraction=0.875, resample="bicubic", mean=HALF, std=HALF
    )
    assert resolve({"data": "x", **LITE0}).preprocess == expected
    lines = ["image_size=96", "crop_fraction=1", "mean=[0, 0, 0.5]", "std=[1, 1, 2]"]
    config = resolve({"data": "x", **LITE0}, overrides=[*lines, "resample=bilinear"])
    assert config.preprocess == Preprocess(image_size=96, mean=(0, 0, 0.5), std=(1, 1, 2))


def test_null_is_what_the_network_wants_too() -> None:
    nulls = [f"{field.name}=null" for field in fields(Preprocess)]
    assert resolve({"data": "x", **LITE0}, overrides=nulls) == resolve({"data": "x", **LITE0})


def test_data_of_one_size_are_taken_whole_and_otherwise_as_the_network_wants() -> None:
    result = resolve({"data": "flora:train=40", **LITE0}).preprocess
    assert result == Preprocess(image_size=48, resample="bicubic", mean=HALF, std=HALF)
    larger = resolve({"data": "flora:train=40", "image_size": 96, **LITE0}).preprocess
    assert (larger.image_size, larger.crop_fraction) == (96, 1.0)


def test_cifar_has_its_own_mean_and_deviation_for_a_network_without_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).touch()
    cifar = {"data": f"{tmp_path}:noise=0.2"}
    own = Preprocess(image_size=32, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
    assert resolve({**cifar, "backbone": "densenet40_40"}).preprocess == own
    assert resolve({**cifar, "weights": str(tmp_path)}).preprocess == own  # a run of ours
    assert resolve(cifar, overrides=["mean=[0, 0, 0]"]).mean == (0, 0, 0)
    for others in ("pretrained", "weights.pt"):
        assert resolve({**cifar, "weights": others}).mean == Preprocess(image_size=32).mean


def test_only_pretrained_weights_of_torchvision_give_the_preprocessing() -> None:
    options = {"data": "x", "backbone": "efficientnet_b0"}
    assert resolve(options).preprocess == Preprocess(image_size=224)
    result = resolve({**options, "weights": "pretrained"}).preprocess
    assert result == Preprocess(image_size=224, crop_fraction=224 / 256, resample="bicubic")


@pytest.mark.parametrize(("word", "weights"), [("imagenet", "pretrained"), ("none", None)])
def test_weights_have_other_words(word: str, weights: str | None) -> None:
    config = resolve({"recipe": "plantnet-avg-k5", "data": "x", "weights": word})
    assert config.weights == weights


def test_settings_on_disk_hold_the_numbers_of_the_pictures() -> None:
    plain = yaml.safe_load(to_yaml(resolve({"data": "x", **LITE0})))
    assert plain["image_size"] == 224
    assert plain["crop_fraction"] == 0.875
    assert plain["mean"] == plain["std"] == [0.5, 0.5, 0.5]
    assert plain["resample"] == "bicubic"


def test_the_settings_of_an_older_run_mean_what_they_meant() -> None:
    plain = yaml.safe_load(to_yaml(resolve({"data": "x"})))
    older = {key: value for key, value in plain.items() if key not in ("mean", "std", "resample")}
    older |= {"backbone": "efficientnet_b0", "weights": "imagenet", "image_size": 96}
    config = _from_plain(older)
    assert config.preprocess == Preprocess(image_size=96)
    assert config.weights == "pretrained"
    assert _from_plain(yaml.safe_load(to_yaml(config))).preprocess == config.preprocess


def test_data_must_come_from_somewhere() -> None:
    with pytest.raises(UsageError, match="data"):
        resolve({})


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1", "is not YAML"), ("- 1", "must hold settings by name, got a list")],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _read_yaml(_file(tmp_path, text))
    with pytest.raises(UsageError, match="read"):
        _read_yaml(tmp_path / "no.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert _read_yaml(_file(tmp_path, "")) == {}


# The optimiser, and older names -------------------------------------------------------------


def test_adamw_has_defaults_of_its_own_and_they_are_written_down() -> None:
    config = resolve({"data": "x"}, overrides=["optimiser.name=adamw"])
    plain = yaml.safe_load(to_yaml(config))["optimiser"]
    assert (plain["learning_rate"], plain["weight_decay"]) == (1e-3, 0.05)
    assert (plain["momentum"], plain["nesterov"]) == (None, None)
    assert _from_plain(yaml.safe_load(to_yaml(config))) == config


def test_what_is_given_beside_adamw_wins_in_any_order() -> None:
    arguments = ["optimiser.learning_rate=3e-4", "optimiser.name=adamw", "optimiser.weight_decay=0"]
    optimiser = resolve({"data": "x"}, overrides=arguments).optimiser
    assert (optimiser.learning_rate, optimiser.weight_decay) == (3e-4, 0)


def test_another_optimiser_drops_the_rates_of_the_one_below_but_not_the_rest(
    tmp_path: Path,
) -> None:
    recipe = {"recipe": "demo"}  # 0.1 for sgd, and three times that for one head
    optimiser = resolve(recipe, overrides=["optimiser.name=adamw"]).optimiser
    assert (optimiser.learning_rate, optimiser.multi_label_rate) == (1e-3, 3.0)
    file = _file(tmp_path, to_yaml(resolve(recipe)))
    again = resolve({}, overrides=["optimiser.name=adamw"], config=file).optimiser
    assert again == optimiser
    same = resolve({}, overrides=["optimiser.name=sgd"], config=file).optimiser
    assert same.learning_rate == 0.1


@pytest.mark.parametrize("setting", ["momentum=0.9", "nesterov=true"])
def test_momentum_is_not_for_adamw(setting: str) -> None:
    name = setting.partition("=")[0]
    message = f"optimiser.{name} must be left out: it is for sgd, got"
    with pytest.raises(UsageError, match=message):
        resolve({"data": "x"}, overrides=["optimiser.name=adamw", f"optimiser.{setting}"])


def test_average_k_of_the_validation_is_read_as_its_k(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve({"data": "x"}, overrides=["validation.average_k=2"]).validation.k == 2
    hints = [line for line in capsys.readouterr().err.splitlines() if "average_k" in line]
    assert hints == ["warning: validation.average_k is now called validation.k"]
    old = _file(tmp_path, "validation: {average_k: 2.5, patience: 4}")
    assert resolve({"data": "x"}, config=old).validation.k == 2.5
    newer = resolve({"data": "x"}, overrides=["validation.k=4"], config=old).validation
    assert (newer.k, newer.patience) == (4, 4)


def test_optimizer_is_another_spelling_of_optimiser(tmp_path: Path) -> None:
    ours = resolve({"data": "x"}, overrides=["optimiser.name=adamw", "optimiser.layer_decay=0.5"])
    mixed = ["optimizer.layer_decay=0.5", "optimizer.name=adamw"]
    assert resolve({"data": "x"}, overrides=mixed) == ours
    file = _file(tmp_path, "optimizer: {name: adamw, layer_decay: 0.5}")
    assert resolve({"data": "x"}, config=file) == ours
    with pytest.raises(UsageError, match=r"optimiser.momentun;.*mean optimiser.momentum"):
        resolve({"data": "x"}, overrides=["optimizer.momentun=0.5"])
    with pytest.raises(UsageError, match="optimiser must hold settings by name, got 3"):
        resolve({"data": "x"}, overrides=["optimizer=3"])


SOLVED = ("freeze=backbone", "weights=w", "optimiser.name=lbfgs")


def test_a_frozen_network_has_its_head_solved_for_unless_another_optimiser_is_named() -> None:
    flags = {"data": "x", "freeze": "backbone"}
    assert resolve(flags).loss == {"name": "cross_entropy"}
    default = resolve(flags).optimiser
    assert (default.name, default.weight_decay, default.learning_rate) == ("lbfgs", None, None)
    assert resolve(flags, overrides=["optimiser.weight_decay=0.1"]).optimiser.weight_decay == 0.1
    sgd = resolve(flags, overrides=["optimiser.name=sgd"]).optimiser
    assert (sgd.name, sgd.weight_decay, sgd.learning_rate) == ("sgd", 1e-4, 0.05)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["validation.metric=top_k", "validation.k=2.5"], "k must be a whole number for top_k"),
        (["class_weight_power=1", "loss.weight=[1, 2]"], "both weight classes: set one"),
        (["freeze=backbone", "weights=null"], "freeze=backbone needs weights: name a file"),
        (["unfreeze=2"], "keeps the other blocks at their initial weights"),
        (["unfreeze=2", "freeze=backbone", "weights=w"], "unfreeze=2 cannot be combined"),
        (["optimiser.name=lbfgs"], "lbfgs solves for a head on kept features: add --freeze backb"),
        ([*SOLVED, "mixup=0.2"], "mixup needs small steps, and optimiser.name=lbfgs takes all"),
        ([*SOLVED, "average.decay=0.9"], "average.decay needs small steps"),
        ([*SOLVED, "optimiser.learning_rate=0.1"], "learning_rate must be left out: it is for sgd"),
        (["mixup=0.2", "cutmix=1"], "mixup and cutmix both mix the pictures of a batch: set one"),
        (["freeze=backbone", "weights=w", "cutmix=1"], "cutmix mixes pictures, and freeze=backbo"),
        (["optimiser.weight_decay=null"], "weight_decay must be given for sgd, got None"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve({"data": "x"}, overrides=overrides)


def test_the_last_blocks_are_given_as_a_number_or_all() -> None:
    options = {"data": "x", "weights": "w"}
    assert resolve(options | {"unfreeze": "2"}).unfreeze == 2  # a flag hands over text
    assert resolve(options, overrides=["unfreeze=all"]).unfreeze == "all"


@pytest.mark.parametrize(
    ("backbone", "said", "clip_norm"),
    [
        ("squeezenet1_1", [], 1.0),
        ("timm:vgg11", [], 1.0),
        ("resnet18", [], None),
        ("vgg11_bn", [], None),
        ("vgg11", ["optimiser.clip_norm=null"], None),
        ("vgg11", ["optimiser.clip_norm=5", "optimiser.name=adamw"], 5.0),
        ("vgg11", ["freeze=backbone", "weights=pretrained"], None),
    ],
)
def test_gradients_are_clipped_by_default_where_no_layer_normalises(
    backbone: str, said: list[str], clip_norm: float | None
) -> None:
    config = resolve({"data": "x", "backbone": backbone}, overrides=said)
    assert config.optimiser.clip_norm == clip_norm


def test_a_run_of_an_older_version_continues_without_clipping(tmp_path: Path) -> None:
    run = resolve({"data": "x", "backbone": "vgg11"}, overrides=["optimiser.clip_norm=null"])
    assert resolve({}, config=_file(tmp_path, to_yaml(run))) == run
