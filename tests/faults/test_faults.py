"""What goes wrong around a run: a full disk, a changed byte, a kill, another process; no number comes out wrong."""

import os
import resource
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from .conftest import PETS, ROOMS, RUN, Job, Place

OTHERS = ("mls", "msp")
OF_OTHERS = (*PETS, "tune=none", "metrics.replicates=20")
SWEEP = ("run", "-m", *OF_OTHERS, f"method={','.join(OTHERS)}")


def up_to(size: int) -> None:
    """No file of this process may become larger; a write beyond that fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def numbers_of(place: Place, files: dict[str, bytes]) -> dict[str, object]:
    """Those of the records among some files."""
    place.reset(files)
    return place.numbers


def test_a_run_on_a_full_disk_says_so_and_with_room_ends_as_if_nothing_had_happened(
    place: Place, undisturbed: dict[str, bytes]
) -> None:
    expected = numbers_of(place, undisturbed)
    sizes = sorted({len(content) for content in undisturbed.values()})
    place.reset({})
    ending = place.ended(before=partial(up_to, sizes[len(sizes) // 2] - 1))
    assert ending.refused, ending
    assert {name: undisturbed[name] for name in place.files if name.endswith((".npy", ".parquet"))} == {
        name: content for name, content in place.files.items() if name.endswith((".npy", ".parquet"))
    }
    again = place.run()
    assert again.code == 0, again.text
    assert place.numbers == expected
    assert set(place.files) == set(undisturbed)


def test_a_leaderboard_on_a_full_disk_leaves_no_part_of_a_file(place: Place, undisturbed: dict[str, bytes]) -> None:
    place.reset(undisturbed)
    assert place.run(["leaderboard"]).code == 0
    whole = {name: content for name, content in place.files.items() if name.startswith("results/leaderboard/")}
    place.reset(undisturbed)
    ending = place.ended(["leaderboard"], partial(up_to, max(map(len, whole.values())) - 1))
    assert ending.refused, ending
    found = {name: content for name, content in place.files.items() if name.startswith("results/leaderboard/")}
    assert found.items() <= whole.items()


STORED = {
    "features": "cache/features/*/*/features.npy",
    "what features should be": "cache/features/*/*/features.json",
    "weights": "cache/checkpoints/*/*.safetensors",
    "what weights should be": "cache/checkpoints/*/*.json",
    "digests of images": "cache/contents/*",
    "the record": "results/records/*/*/*/*.json",
}


def flip(path: Path, share: float) -> None:
    """Change one bit in the middle of a file; its time stamp stays."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 0x04
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("stored", STORED)
def test_a_changed_byte_gives_no_other_number(place: Place, undisturbed: dict[str, bytes], stored: str) -> None:
    expected = numbers_of(place, undisturbed)
    (path, *_) = sorted(place.folder.glob(STORED[stored]))
    name, room = str(path.relative_to(place.folder)), "/".join(STORED[stored].split("/")[:2])
    # What was made of the file is gone, so that the file itself is read.
    place.reset({other: content for other, content in undisturbed.items() if other.startswith(room)})
    flip(path, 0.6)
    ending = place.run()
    if ending.code:
        assert ending.refused, ending
        assert name in ending.text
        shutil.rmtree(path.parent) if "delete its folder" in ending.text else path.unlink()
        again = place.run()
        assert again.code == 0, again.text
    assert place.numbers == expected


@pytest.mark.parametrize(
    ("command", "kind"),
    [("thresholds pets", ".json"), ("thresholds pets", ".parquet"), ("evaluate {scores}", ".parquet")],
)
def test_a_changed_byte_in_a_record_or_its_scores_gives_no_other_table(
    place: Place, undisturbed: dict[str, bytes], command: str, kind: str
) -> None:
    place.reset(undisturbed)
    [scores] = [path for path in (place.folder / "cache/scores").glob("*.parquet") if "by_class" not in path.name]
    words = [*command.format(scores=scores).split(), "--format", "json"]
    expected = place.run(words)
    assert expected.code == 0
    for path in [p for room in ROOMS for p in (place.folder / room).rglob(f"*{kind}") if "features" not in p.parts]:
        content = path.read_bytes()
        flip(path, 0.5)
        ending = place.run(words)
        assert ending.code == 2 or ending == expected, (path, ending)
        path.write_bytes(content)


def kill_before(folder: Path, name: str) -> None:
    """Have this process killed before it gives or takes a name of a file or folder below cache and results."""
    roots = tuple(str(folder / room) for room in ROOMS)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        changes = event in ("os.rename", "os.link", "os.remove", "os.mkdir") and str(arguments[0]).startswith(roots)
        if changes and name in str(arguments[0]):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.mark.parametrize(
    ("command", "name"),
    [(RUN, "features.json"), (RUN, "/knn/"), (SWEEP, "/msp/")],
    ids=["a run at its features", "a run at its record", "a sweep at its second record"],
)
def test_a_killed_command_goes_on_when_it_is_given_again(
    place: Place, undisturbed: dict[str, bytes], command: tuple[str, ...], name: str
) -> None:
    expected = numbers_of(place, undisturbed)
    if command == SWEEP:
        place.reset({file: content for file, content in undisturbed.items() if not file.startswith("results/")})
        assert [place.run(("run", *OF_OTHERS, f"method={method}")).code for method in OTHERS] == [0, 0]
        expected = place.numbers
    place.reset({})
    killed = place.ended(command, partial(kill_before, place.folder, name))
    assert killed.code == -signal.SIGKILL
    assert len(place.numbers) == len(expected) - 1
    again = place.run(command)
    assert again.code == 0, again
    assert place.numbers == expected


def test_two_processes_share_a_cache(place: Place, undisturbed: dict[str, bytes]) -> None:
    expected = numbers_of(place, undisturbed)
    place.reset({})
    run = tuple(word.replace("progress=false", "progress=true") for word in RUN)
    other = (*(word for word in run if not word.startswith("method")), "method=msp")
    jobs = [Job(command) for command in (run, other)]
    ends = [job.ended() for job in jobs]
    assert [end.code for end in ends] == [0, 0], ends
    said = ends[0].text + ends[1].text
    assert said.count(": training for ") == 1
    assert said.count("resnet8_digits on pets (id_test): 12 of 12 images") == 1
    assert expected.items() <= place.numbers.items()
    assert len(place.numbers) == 2
