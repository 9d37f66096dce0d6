"""Benchmarks that need only a list or an archive: each is built from stand-ins, noise where an image would lie.

The paths are those of the published archives, written by hand, two images per set at most. A set that is not named here
must be missing, so a stand-in shows that images are found where people have them, and nowhere else.
"""

import pytest

from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import build_benchmark
from openbench.data.download import data_sources

from .conftest import noisy, write_image

VAL = "imagenet/val/ILSVRC2012_val_{:08d}.JPEG"


def imagenet(train: str, val: int, test: int) -> dict[str, list[str]]:
    return {
        "id.train": [f"imagenet/train/{train}/{train}_{i}.JPEG" for i in (1, 2)],
        "id.val": [VAL.format(val)],
        "id.test": [VAL.format(test)],
    }


WHOLE = imagenet("n02088094", 6271, 82)
MOS = {
    "far.inaturalist": ["iNaturalist/images/000309dd0c724a5104df8e716b9008a0.jpg"],
    "far.sun": ["SUN/images/sun_aaaenaoynzhoyheo.jpg"],
    "far.places": ["Places/images/b_badlands_00000792.jpg", "Places/images/s_sky_00000001.jpg"],
    "far.textures": ["dtd/images/banded/banded_0002.jpg"],
}
CLASSIC = {
    "far.svhn": ["images_classic/svhn/test/000001_5.jpg"],
    "far.texture": ["dtd/images/banded/banded_0002.jpg"],
    "far.lsun_crop": ["LSUN/test/0.png"],
    "far.lsun_resize": ["LSUN_resize/0.png"],
    "far.isun": ["iSUN/iSUN_patches/000.jpeg", "iSUN/iSUN_patches/001.jpeg"],
}
SPURIOUS = {path: CLASSIC[path] for path in ("far.svhn", "far.lsun_resize", "far.isun")}
FACE = "celeba/img_align_celeba/{:06d}.jpg"
CROP = "midog/{}.tiff"
NINCO = "NINCO/NINCO_popular_datasets_subsamples/{}"
UNIT = "NINCO/NINCO_OOD_unit_tests/{}"


def cifar(name: str, first: str) -> dict[str, list[str]]:
    return {
        "id.train": [f"images_classic/{name}/train/{first}/0001.png"],
        "id.val": [f"images_classic/{name}/test/{first}/{i:04d}.png" for i in range(1, 101)],
        "id.test": [f"images_classic/{name}/test/{first}/{i:04d}.png" for i in range(1, 101)],
    }


def semantic_shift(folder: str, kinds: list[str]) -> dict[str, list[str]]:
    known, hard, medium, easy = kinds
    return {
        "id.train": [f"{folder}/train/{known}/{i}.jpg" for i in range(9)],
        "id.val": [f"{folder}/train/{known}/9.jpg"],
        "id.test": [f"{folder}/test/{known}/0.jpg"],
        **{f"{group}": [f"{folder}/test/{kind}/{i}.jpg" for i in (0, 1)]
           for group, kind in (("near.hard", hard), ("near.medium", medium), ("far.easy", easy))},
    }  # fmt: skip


STAND_INS = {
    "imagenet1k_mos": {**WHOLE, **MOS},
    "imagenet10": {**imagenet("n04552348", 4666, 531), "near.imagenet20": [VAL.format(498)], **MOS},
    "imagenet100": {**imagenet("n01498041", 28862, 1629), **MOS},
    "imagenet_x_fs": {
        **imagenet("n01440764", 6271, 82),
        "csid.imagenet_v2": [
            "imagenetv2-matched-frequency-format-val/0/d337d803d2ca57a80e880cb0686ea96e5d4ca8c7.jpeg"
        ],
        "csid.imagenet_c": ["images_largescale/imagenet_c/brightness/1/ILSVRC2012_val_00000957.JPEG"],
        "csid.imagenet_r": ["imagenet-r/n01484850/art_0.jpg"],
        "near.other_classes": [VAL.format(1939)],
    },
    "fmow_x": {
        "id.train": ["fmow/train/airport/rgb_img_7.png"], "id.val": ["fmow/id_val/airport/rgb_img_8.png"],
        "id.test": ["fmow/id_test/airport/rgb_img_9.png"],
        "csid.later_years": ["fmow/test/multi-unit_residential/rgb_img_1.png"],
        "near.same_years": ["fmow/id_test/airport_terminal/rgb_img_2.png"],
        "near.later_years": ["fmow/test/zoo/rgb_img_3.png"],
    },
    "imagenet1k_ood": {**WHOLE, "near.imagenet_ood": ["imagenet21k/n02666943/n02666943_47.JPEG"]},
    "imagenet1k_o": {**WHOLE, "near.imagenet_o": ["imagenet-o/n01443537/cardinal_tetra_0.99767953.JPEG"]},
    "imagenet1k_fs_es": {
        **WHOLE,
        "csid.imagenet_es": [
            "ImageNet-ES/es-test/param_control/l5/param_27/n01443537/a.JPEG",
            "ImageNet-ES/es-test/auto_exposure/l1/param_5/n12267677/b.JPEG",
        ],
        "far.textures": ["dtd/images/blotchy/blotchy_0003.jpg"],
    },
    "imagenet1k_cleaned": {
        **WHOLE,
        "near.ninco": [  # the archive has blanks where OpenOOD's list has underscores
            "NINCO/NINCO_OOD_classes/high heels/high heels_000_101.jpg",
            "NINCO/NINCO_OOD_classes/f_field_road/f_field_road_000_00000092.jpg",
        ],
        "near.ssb_hard": [NINCO.format("SSB_hard/SSB_hard_000_n01492569_2261.JPEG")],
        "near.openset_360": [NINCO.format("360OpenSet/360OpenSet_000_n01641206_5620.JPEG")],
        "far.places": [NINCO.format("Places/Places_000_b_badlands_00000792.jpg")],
    },
    "imagenet1k_unit_tests": {
        **WHOLE,
        "far.uni": [UNIT.format("uni/uni_000_uni_00112.png")],
        "far.gaussian": [UNIT.format("Gaussian/Gaussian_000_Gaussian_00217.jpg")],
        "far.pixel_perm": [UNIT.format("pixel_perm/pixel_perm_000_pixel_perm_00076.png")],
    },
    "cifar10_classic": {**cifar("cifar10", "airplane"), **CLASSIC},
    "celeba_hair": {
        "id.train": [FACE.format(47)], "id.val": [FACE.format(52)], "id.test": [FACE.format(462)],
        "near.bald": [FACE.format(79), FACE.format(115)], **SPURIOUS,
    },
    "waterbirds": {
        **{f"id.{part}": [f"waterbirds/{part}/{kind}/a.jpg" for kind in ("landbird", "waterbird")]
           for part in ("train", "val", "test")},
        "near.scenes": ["places365/data_256_standard/f/forest/broadleaf/00000001.jpg"], **SPURIOUS,
    },
    "ssb_cub": semantic_shift("cub", [
        "001.Black_footed_Albatross", "004.Groove_billed_Ani", "003.Sooty_Albatross", "002.Laysan_Albatross",
    ]),
    "ssb_cars": semantic_shift("car_data/car_data", [
        "AM General Hummer SUV 2000", "Audi S4 Sedan 2007", "Acura TL Type-S 2008", "Acura TSX Sedan 2012",
    ]),
    "ssb_aircraft": semantic_shift("aircraft", [
        "Boeing 707 707-320", "Boeing 737 737-600", "Cessna Citation Cessna 525", "ATR-42 ATR-42",
    ]),
    "midog": {
        "id.train": [CROP.format("1a/001/001_1_0")], "id.val": [CROP.format("1a/020/020_362_0")],
        "id.test": [CROP.format("1a/003/003_21_0")], "csid.scanner_1b": [CROP.format("csid/1b/051/051_1176_0")],
        "ood_val": ["midog/far/ccagt_crops/E_14415_-324000_127440/60676_7.jpg"],
        "near.domain_2": [CROP.format("near/2/201/201_4437_0")],
        "far.ccagt": ["midog/far/ccagt_crops/A_10059_-181440_90720/12188_1.jpg"],
        "far.fnac2019": ["midog/far/fnac2019_crops/B_1/00000_cell.jpg"],
    },
    "phakir": {
        "id.train": ["phakir/Video_02/Video_02_Frames/frame_0_19_0.png"],
        "id.val": ["phakir/Video_05/Video_05_Frames/frame_375_19_0.png"],
        "id.test": ["phakir/Video_01/Video_01_Frames/frame_0_19_0.png"],
        "csid.heavy_smoke": ["phakir/Video_01/Video_01_Smoke/frame_5525_2_2.png"],
        "ood_val": ["phakir/far/CATARACTS/test/test05/160.jpg"],
        "near.cholec80": ["phakir/near/Cholec80_cropped/Video_01_Frames/frame_50_0_0.png"],
        "near.endovis2015": ["phakir/near/Endovis2015_cropped/OP1/Raw/img_01_raw.png"],
        "near.endovis2018": ["phakir/near/Endovis2018/seq_1/left_frames/frame000.png"],
        "far.kvasir": ["phakir/far/kvasir-seg/cju2np2k9zi3v079992ypxqkn.jpg"],
        "far.cataracts": ["phakir/far/CATARACTS/test/test01/44.jpg"],
    },
    "mvtec": {
        "id.train": [f"mvtec_anomaly_detection/bottle/train/good/{i:03d}.png" for i in range(9)],
        "id.val": ["mvtec_anomaly_detection/bottle/train/good/009.png"],
        "id.test": ["mvtec_anomaly_detection/bottle/test/good/000.png"],
        "far.defects": ["mvtec_anomaly_detection/bottle/test/broken_large/000.png"],
    },
}  # fmt: skip
# Of the first 100 test images of a class, how many OpenOOD's lists have for validation and for the test.
SHARED = {"cifar10_classic": (13, 87)}


@pytest.mark.parametrize("name", STAND_INS)
def test_a_benchmark_finds_stand_ins_where_its_archives_put_images(name, root, composed):
    sets = STAND_INS[name]
    files = sorted({file for of in sets.values() for file in of})
    for seed, file in enumerate(files):
        write_image(root / file, noisy((8, 8, 3), seed), format="PNG")
    bench = build_benchmark({**composed(f"+benchmark={name}"), "incomplete": "allow"})
    found = {f"id.{part}": getattr(bench, f"id_{part}") for part in ("train", "val", "test")}
    found |= {"ood_val": bench.ood_val} if bench.ood_val is not None else {}
    for group in ("csid", "near", "far"):
        found |= {f"{group}.{key}": split for key, split in getattr(bench, group).items()}
    expected = {path: len(of) for path, of in sets.items() if of}
    if name in SHARED:
        expected["id.val"], expected["id.test"] = SHARED[name]
    assert {path: len(split) for path, split in found.items()} == expected
    assert not bench.pristine


def test_every_set_says_where_its_images_come_from(composed):
    sets = [entry for name in STAND_INS for entry in BenchmarkConfig.parse(composed(f"+benchmark={name}")).sets]
    assert {entry.config.name for entry in sets} - set(data_sources()) == set()
