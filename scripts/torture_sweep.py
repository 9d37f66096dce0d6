"""Kill the jobs of a sweep at random, give the command again until all is done, and compare with an undisturbed sweep.

    python scripts/torture_sweep.py slurm --kills 40 --work /tmp/torture
    python scripts/torture_sweep.py ray   --kills 40 --work /tmp/torture
    python scripts/torture_sweep.py joblib --kills 40 --work /tmp/torture

Slurm must be there (`sinfo`); of Ray, two nodes are started on this machine and ended. What is killed is known by a
variable of its environment, so that nothing else on the machine is touched. The last table says what was killed how
often, how often the command was given, and which records, tables, kept scores, features and weights differ; the exit
code is 1 if any do. An undisturbed sweep that is in the folder already is not made again.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "OPENBENCH_TORTURE"
SWEEP = [
    *("+benchmark=digits,openset_digits", "method=knn,mds,vim", "seed=0,1"),
    *("training.recipe.epochs=2", "metrics.replicates=100"),
]
LAUNCHERS = {
    "slurm": ["runtime=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.array_parallelism=3"],
    "ray": ["runtime=ray", "hydra.launcher.ray.init.address=127.0.0.1:{port}"],
    "joblib": ["runtime=joblib", "hydra.launcher.n_jobs=2"],
}
# When and where a record was made; everything else in it must be equal.
VOLATILE = ("utc", "seconds", "peak_mib", "passes", "reused")
PORT = 26379  # of the head of Ray


def processes(token: str, words: tuple[str, ...]) -> list[int]:
    """The processes of this sweep whose command line holds one of some words."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(folder.name)
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{MARK}={token}".encode() in environment and any(word in command for word in words):
                found.append(pid)
    return found


def ancestors(pid: int, name: str) -> Iterator[int]:
    """The processes of a name that a process descends from."""
    while pid > 1:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pid = int(fields[1])
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                yield pid
        except OSError:
            return


class Cluster:
    """What the jobs run on, and the ways to disturb it.

    Args:
        token: the mark of its processes.
        chance: what is chosen at random.
    """

    jobs: tuple[str, ...] = ("popen_loky_posix",)

    def __init__(self, token: str, chance: random.Random) -> None:
        self.token, self.chance = token, chance

    @contextmanager
    def running(self) -> Iterator[None]:
        """The cluster, while the block runs."""
        yield

    def ways(self) -> dict[str, Callable[[], bool]]:
        """{what is done to it: a function that does it and says whether there was anything to kill}."""
        return {"SIGKILL of a job": self.kill_job, "SIGKILL of the sweep": self.kill_sweep}

    def kill_job(self) -> bool:
        """Kill a process that carries out jobs."""
        return self.kill(self.jobs)

    def kill_sweep(self) -> bool:
        """Kill the command itself."""
        return self.kill(("openbench run -m",))

    def kill(self, words: tuple[str, ...]) -> bool:
        """Kill one process of those whose command line holds one of some words."""
        found = processes(self.token, words)
        with suppress(ProcessLookupError):
            if found:
                os.kill(self.chance.choice(found), signal.SIGKILL)
                return True
        return False


class Slurm(Cluster):
    """Jobs of Slurm: killed, cancelled, requeued as by a preemption, and the daemon of the node with all its jobs."""

    jobs = ("submitit.core._submit",)
    state = Path(os.environ.get("SLURM_LOCAL_STATE", "/tmp/slurm-local"))

    def ways(self) -> dict[str, Callable[[], bool]]:
        """See Cluster."""
        more = {"scancel": self.cancel, "preemption (SIGUSR2)": self.preempt, "loss of the node": self.lose_node}
        return {**super().ways(), **more}

    def queued(self, *states: str) -> list[str]:
        """The jobs of this user in some states."""
        listed = ["squeue", "--noheader", "--array", f"--states={','.join(states)}", "--format=%i %j"]
        found = subprocess.run(listed, capture_output=True, text=True).stdout.splitlines()
        return [line.split()[0] for line in found if line.split()[1:] == ["run"]]

    def cancel(self) -> bool:
        """Cancel a job, running or pending."""
        found = self.queued("RUNNING", "PENDING")
        return bool(found) and not subprocess.run(["scancel", self.chance.choice(found)]).returncode

    def preempt(self) -> bool:
        """Send a job the signal that tells it that it must go: submitit queues it again."""
        found = self.queued("RUNNING")
        if not found or not processes(self.token, self.jobs):
            return False
        return not subprocess.run(["scancel", "--signal=USR2", self.chance.choice(found)]).returncode

    def lose_node(self) -> bool:
        """Kill the daemon of the node and all its jobs, and start it again."""
        if not processes(self.token, self.jobs):
            return False
        with suppress(OSError, ValueError):
            os.kill(int((self.state / "slurmd.pid").read_text()), signal.SIGKILL)
        found = processes(self.token, self.jobs)
        for pid in {*found, *(above for job in found for above in ancestors(job, "slurmstepd"))}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What Slurm does by itself once the node has not answered for five minutes.
        node = os.uname().nodename.partition(".")[0]
        for state in (["state=down", "reason=lost"], ["state=resume"]):
            subprocess.run(["scontrol", "update", f"nodename={node}", *state], check=False)
        time.sleep(2)
        subprocess.run(["slurmd"], check=True)
        return True


class Ray(Cluster):
    """Tasks of Ray on two nodes of this machine, of which the second is lost and replaced."""

    jobs = ("ray::_run_job",)

    def __init__(self, token: str, chance: random.Random) -> None:
        super().__init__(token, chance)
        self.nodes = Path(f"/tmp/{token}")  # short, as it holds sockets
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "600"}  # both nodes are here

    @contextmanager
    def running(self) -> Iterator[None]:
        """See Cluster."""
        self.start("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.nodes}")
        self.start(f"--address=127.0.0.1:{PORT}")
        try:
            yield
        finally:
            for pid in processes(self.token, ("ray", "raylet", "gcs_server")):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.nodes, ignore_errors=True)

    def start(self, *words: str) -> None:
        """Start a node; on a loaded machine it may take several tries."""
        ray = Path(sys.executable).with_name("ray")
        command = [str(ray), "start", "--num-cpus=1", "--disable-usage-stats", *words]
        for _ in range(5):
            said = subprocess.run(command, capture_output=True, text=True)
            if not said.returncode:
                return
        raise SystemExit(f"ray did not start: {said.stdout}{said.stderr}")

    def ways(self) -> dict[str, Callable[[], bool]]:
        """See Cluster."""
        return {**super().ways(), "loss of a node": self.lose_node}

    def lose_node(self) -> bool:
        """Kill the daemon of a node that is not the head, whose tasks end with it, and start another."""
        found = [pid for pid in processes(self.token, ("raylet/raylet",)) if not _is_head(pid)]
        if not found or not processes(self.token, self.jobs):
            return False
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        self.start(f"--address=127.0.0.1:{PORT}")
        return True


def _is_head(pid: int) -> bool:
    """Whether a raylet is that of the head node."""
    with suppress(OSError):
        return b"--head" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True


CLUSTERS = {"slurm": Slurm, "ray": Ray, "joblib": Cluster}


def main() -> int:
    """Run both sweeps, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launcher", choices=LAUNCHERS)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--pause", type=float, default=8.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when")
    parser.add_argument("--work", type=Path, required=True, help="folder for caches and results")
    asked = parser.parse_args()
    token, chance = f"{asked.launcher}{os.getpid()}", random.Random(asked.seed)
    os.environ[MARK] = token
    cluster = CLUSTERS[asked.launcher](token, chance)
    typed = [*SWEEP, *(word.format(port=PORT) for word in LAUNCHERS[asked.launcher])]
    calm, disturbed = asked.work / f"{asked.launcher}-undisturbed", asked.work / f"{asked.launcher}-disturbed"
    with cluster.running():
        took = None if calm.exists() else undisturbed(typed, calm)
        kills, codes = disturb(typed, disturbed, cluster, asked.kills, asked.pause)
    found = {place: leaderboard(place) for place in (calm, disturbed)}
    return report(asked.launcher, (calm, disturbed), found, kills, codes, took)


def undisturbed(typed: list[str], place: Path) -> float:
    """Carry out the sweep; return the seconds. What one that failed has made does not stay to be compared with."""
    started = time.monotonic()
    if code := start(typed, place).wait():
        aside = place.with_name(f"{place.name}-failed-{os.getpid()}")
        place.rename(aside)
        raise SystemExit(f"the undisturbed sweep ended with exit code {code}, see {aside / 'log'}")
    return time.monotonic() - started


def start(typed: list[str], place: Path) -> "subprocess.Popen[bytes]":
    """Begin the sweep in a folder of its own."""
    place.mkdir(parents=True, exist_ok=True)
    places = {"OPENBENCH_CACHE": str(place / "cache"), "OPENBENCH_RESULTS": str(place / "results")}
    with (place / "log").open("ab") as log:
        command = [sys.executable, "-m", "openbench", "run", "-m", *typed]
        return subprocess.Popen(command, env={**os.environ, **places}, stdout=log, stderr=log)


def disturb(
    typed: list[str], place: Path, cluster: Cluster, wanted: int, pause: float
) -> tuple["Counter[str]", list[int]]:
    """Give the command until all is done, killing meanwhile; return what was killed, and the exit codes."""
    kills, codes, ways = Counter[str](), list[int](), cluster.ways()
    chance = cluster.chance
    weights = [{"SIGKILL of the sweep": 2, "loss of a node": 1, "loss of the node": 2}.get(name, 6) for name in ways]
    while not codes or codes[-1] != 0 or kills.total() < wanted:
        if codes and codes[-1] == 0:  # done before it was disturbed enough: the rest is killed in what is made again
            forget_some(place, chance)
        sweep = start(typed, place)
        while sweep.poll() is None:
            end = time.monotonic() + chance.expovariate(1 / pause)
            while sweep.poll() is None and (time.monotonic() < end or kills.total() >= wanted):
                time.sleep(0.2)
            if sweep.poll() is None:
                [way] = chance.choices(list(ways), weights)
                kills[way] += ways[way]()
                print(f"{kills.total():>3} kills, command {len(codes) + 1}: {way}", file=sys.stderr, flush=True)
        codes.append(sweep.returncode)
    return kills, codes


def forget_some(place: Path, chance: random.Random) -> None:
    """Delete half of the records, and of the features and weights, so that there is something left to disturb."""
    records = sorted((place / "results" / "records").rglob("*.json"))
    for file in chance.sample(records, len(records) // 2):
        file.unlink()
    for kind in ("features", "checkpoints"):
        folders = sorted(folder for folder in (place / "cache" / kind).iterdir() if folder.is_dir())
        for folder in chance.sample(folders, len(folders) // 2):
            shutil.rmtree(folder)


def leaderboard(place: Path) -> dict[str, bytes]:
    """What the leaderboard command writes from the records of a folder."""
    environment = {**os.environ, "OPENBENCH_RESULTS": str(place / "results"), "OPENBENCH_CACHE": str(place / "cache")}
    command = [sys.executable, "-m", "openbench", "leaderboard"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    folder = place / "results" / "leaderboard"
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def records(place: Path) -> dict[str, str]:
    """{path: content of a record without what says when and where it was made}."""
    found = {}
    for file in sorted((place / "results" / "records").rglob("*.json")):
        content = json.loads(file.read_text())
        content.pop("content_sha256", None)
        content["provenance"] = {k: v for k, v in content["provenance"].items() if k not in VOLATILE}
        found[str(file.relative_to(place))] = json.dumps(content, sort_keys=True)
    return found


def digests(place: Path, pattern: str) -> dict[str, str]:
    """{path: digest} of files of the cache."""
    files = sorted((place / "cache").glob(pattern))
    return {str(file.relative_to(place)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def report(
    launcher: str,
    places: tuple[Path, Path],
    tables: dict[Path, dict[str, bytes]],
    kills: "Counter[str]",
    codes: list[int],
    took: float | None,
) -> int:
    """Print what was killed and what differs; 1 if anything does."""
    calm, disturbed = places
    kinds = {
        "records": (records(calm), records(disturbed)),
        "files of the leaderboard": (tables[calm], tables[disturbed]),
        "kept scores": (digests(calm, "scores/*.parquet"), digests(disturbed, "scores/*.parquet")),
        "columns of features": (digests(calm, "features/*/*/*.npy"), digests(disturbed, "features/*/*/*.npy")),
        "weights": (digests(calm, "checkpoints/*/*.safetensors"), digests(disturbed, "checkpoints/*/*.safetensors")),
    }
    told = "was there already" if took is None else f"took {took:.0f} s"
    print(f"\n{launcher}: {kills.total()} kills; the undisturbed sweep {told}")
    for way, count in sorted(kills.items()):
        print(f"  {count:>3}  {way}")
    print(f"  the command was given {len(codes)} times, exit codes {codes}")
    wrong = 0
    for kind, (one, other) in kinds.items():
        differing = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        wrong += len(differing)
        print(f"  {kind}: {len(one)} and {len(other)}, {len(differing)} differ {differing[:5] or ''}".rstrip())
    left = [str(file) for file in disturbed.rglob("*") if file.name.endswith((".tmp", ".part"))]
    print(f"  left over: {left or 'nothing'}")
    return int(bool(wrong or not kinds["records"][0]))


if __name__ == "__main__":
    sys.exit(main())
