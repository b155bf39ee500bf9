#!/usr/bin/env python3
"""Builds and runs the tests: one process a test, in its own mount, pid and network namespaces.

usage: run.py TARGET [--resume] [PART...]    a target of STAGES or a lane; PART: only tests whose names contain one of them
       run.py only PART...                   these tests, in whatever lane they are
       run.py planted [PART...]              plant each defect of e2e/planted and run the test that has to catch it
       run.py list [--write]                 compare e2e/tests.txt with the tests that are built; --write: update the file

--resume leaves out what passed before. --built runs what an earlier run built. e2e/tests.txt names each test with its lane, so no test
vanishes unseen. Lanes run one after the other: what computes never runs beside what measures time."""
import concurrent.futures, json, os, pathlib, re, shutil, signal, subprocess, sys, tempfile, threading, time, tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "e2e/tests.txt"
PROGRAMS = ROOT / "target/tests/programs.json"
CPUS = os.cpu_count() or 1
# Tests that run at the same time, and the seconds after which a test hangs. A test prints its logs and ends at the guard; the runner kills it
# GRACE seconds later.
LANES = {
    "compute": (CPUS, 180),
    "kernel": (CPUS + 1, 180),
    "e2e": (2 * CPUS, 180),
    "more": (3 * CPUS, 600),
    "kube": (2 * CPUS, 900),
    "doctor": (3 * CPUS, 600),
    "page": (1, 600),
    # Started by their own make targets.
    "vm": (2, 1800),
    "vm-scale": (1, 1800),
    "sim": (CPUS, 1800),
    "soak": (1, 3600),
    "conformance": (1, 3600),
    "interop": (1, 1800),
}
GRACE = 20
# A stage is the build, a lane of tests or a command.
STAGES = {
    "test": [
        ("setup", ["./e2e/setup.sh", "test"]),
        ("format", ["cargo", "fmt", "--all", "--check"]),
        ("build and clippy", "build"),
        ("compute", "compute"),
        ("doc tests", ["cargo", "test", "--quiet", "--workspace", "--doc"]),
        ("kernel", "kernel"),
        ("end to end", "e2e"),
    ],
    "test-all": [
        ("setup", ["./e2e/setup.sh", "all"]),
        ("build and clippy", "build"),
        *((lane, lane) for lane in ("more", "doctor", "kube", "page")),
        ("conformance", ["make", "--no-print-directory", "conformance", "ARGS=dual_stack_with_kube_proxy_by_nftables"]),
        ("virtual machine", ["make", "--no-print-directory", "test-vm"]),
        ("simulations", ["make", "--no-print-directory", "test-sim"]),
        ("lint-all", ["make", "--no-print-directory", "lint-all"]),
    ],
}
# What a test sees of the environment.
PASSED_ON = re.compile(
    r"(PATH|HOME|USER|XDG_CACHE_HOME|TERM|RUST_.*|CARGO.*|RUSTUP.*|KUBEBUILDER_ASSETS|GO_FLANNEL.*|FLANNEL_.*|SIMULATION_.*|RULES_.*|PROPTEST_.*|INSTA_.*)"
)
# A folder of its own for what a test writes; the work tree stays, also below /tmp.
NAMESPACES = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
ENTER = """mount -t tmpfs -o mode=755 run /run && mkdir -p /run/lock /run/tree && mount --bind "$1" /run/tree && mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p "$1" && mount --move /run/tree "$1" && rmdir /run/tree; ip link set lo up; cd "$2" && shift 2 && exec "$@" """


def cargo_environment():
    """Clippy is the compiler of the workspace's crates, so the build is the lint too: one pass instead of two."""
    driver = subprocess.run(["rustup", "which", "clippy-driver"], capture_output=True, text=True).stdout.strip() or shutil.which("clippy-driver")
    if not driver:
        sys.exit("run.py: there is no clippy: rustup component add clippy")
    return {**os.environ, "RUSTC_WORKSPACE_WRAPPER": driver, "CLIPPY_ARGS": "-Dwarnings__CLIPPY_HACKERY__"}


def build(tree=ROOT, env=None, which=("--workspace",)):
    """Builds the workspace, or a part of it, with its tests. Returns {source: (program, folder of its package)}, or None."""
    command = ["cargo", "test", "--locked", *which, "--no-run", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=tree, env=env or cargo_environment(), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None
    programs = {}
    for line in done.stdout.splitlines():
        built = json.loads(line)
        if built.get("executable") and built["profile"]["test"]:
            source = os.path.relpath(built["target"]["src_path"], tree)
            programs[source] = (built["executable"], os.path.dirname(built["manifest_path"]))
    if tree == ROOT:
        PROGRAMS.parent.mkdir(parents=True, exist_ok=True)
        PROGRAMS.write_text(json.dumps(programs))
    return programs


def environment(folder, guard=None):
    kept = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    kept.update(CARGO_MANIFEST_DIR=folder, LANG="C.UTF-8", PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
    # No chance without a fixed seed.
    kept.setdefault("PROPTEST_RNG_SEED", "1")
    if guard:
        kept.setdefault("FLANNEL_TEST_GUARD", str(guard))
    return kept


def names(programs):
    """All tests that are built, as {(source, test)}."""
    found = set()
    for source, (program, folder) in programs.items():
        shown = subprocess.run([program, "--list", "--format", "terse"], cwd=folder, env=environment(folder), capture_output=True, text=True, check=True)
        found.update((source, line[: -len(": test")]) for line in shown.stdout.splitlines() if line.endswith(": test"))
    return found


def listed():
    lines = [line.split(None, 2) for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {(source, test): lane for lane, source, test in lines}


def compare(programs, write):
    """Holds e2e/tests.txt against the tests that are built. A new test gets the lane of its module or program if --write is given."""
    known, there = listed(), names(programs)
    new, gone = sorted(there - known.keys()), sorted(known.keys() - there)
    if not write:
        for what, tests in (("is in no lane of e2e/tests.txt", new), ("is in e2e/tests.txt, but is not built", gone)):
            for source, test in tests:
                print(f"list: {test} of {source} {what}; `./e2e/run.py list --write` updates the file")
        return not new and not gone
    for source, test in new:
        beside = [lane for (other, name), lane in known.items() if other == source and name.rsplit("::", 1)[0] == test.rsplit("::", 1)[0]]
        beside = beside or [lane for (other, _), lane in known.items() if other == source]
        known[source, test] = max(set(beside), key=beside.count) if beside else "compute"
        print(f"list: {test} of {source} runs in the lane {known[source, test]}")
    head = "# Each test with its lane (e2e/run.py) and the source of its program. `./e2e/run.py list --write` adds new tests.\n"
    rows = sorted((lane, source, test) for (source, test), lane in known.items() if (source, test) in there)
    LIST.write_text(head + "".join(f"{' '.join(row)}\n" for row in rows))
    return True


class Record:
    """What a target did so far, for --resume and for the order of the next run: seconds of each test, and whether it passed."""

    def __init__(self, name):
        self.path = ROOT / f"target/tests/{name}.json"
        self.seconds = json.loads(self.path.read_text()) if self.path.exists() else {}

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".new")
        half.write_text(json.dumps(self.seconds))
        half.rename(self.path)


def run_test(lane, program, folder, test, guard, tree=ROOT):
    """Returns (passed, seconds, seconds of the processor, output)."""
    command = [program, "--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]
    if lane != "compute":
        root = [] if os.geteuid() == 0 else ["sudo", "-E", "env", f"PATH={environment(folder)['PATH']}"]
        command = [*root, *NAMESPACES, "sh", "-c", ENTER, "sh", str(tree), folder, *command]
    begun = time.monotonic()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(command, cwd=folder, env=environment(folder, guard), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        hung = threading.Timer(guard + GRACE, os.killpg, (child.pid, signal.SIGKILL))
        hung.start()
        _, status, used = os.wait4(child.pid, 0)
        hung.cancel()
        code = child.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        output = log.read().decode(errors="replace")
    ran = re.search(r"^test result: ok\. 1 passed", output, re.M)
    return code == 0 and ran is not None, time.monotonic() - begun, used.ru_utime + used.ru_stime, f"{output}\nexit code {code}\n"


def run_lane(lane, programs, parts, resume):
    """Runs the tests of a lane, the longest first. Returns (passed, failed)."""
    at_once, guard = LANES[lane]
    guard = int(os.environ.get("FLANNEL_TEST_GUARD", guard))
    record = Record(lane)
    tests = [(source, test) for (source, test), its in listed().items() if its == lane and (not parts or any(part in test for part in parts))]
    key = lambda source, test: f"{programs[source][0]} {test}"
    if resume:
        tests = [pair for pair in tests if record.seconds.get(key(*pair), -1) < 0]
    last = {name.rsplit(" ", 1)[-1]: abs(seconds) for name, seconds in record.seconds.items()}
    tests.sort(key=lambda pair: -last.get(pair[1], 1.0))
    passed, failed = 0, []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        waiting = {pool.submit(run_test, lane, *programs[source], test, guard): (source, test) for source, test in tests}
        for done in concurrent.futures.as_completed(waiting):
            (source, test), (well, seconds, computed, output) = waiting[done], done.result()
            record.seconds[key(source, test)] = seconds if well else -seconds
            passed += well
            if not well:
                failed.append((source, test))
                print(f"---- {test} ({source}, {seconds:.1f} s) ----\n{output}", flush=True)
            elif lane != "compute" or seconds > 5:
                print(f"ok {seconds:6.1f} s {computed:6.1f} s computing  {test}", flush=True)
            if lane not in ("compute", "kernel"):
                record.write()
    record.write()
    if failed:
        print(f"failures of {lane}:", *(f"    {test} ({source})" for source, test in failed), sep="\n")
    print(f"{lane}: {passed} passed, {len(failed)} failed", flush=True)
    return passed, len(failed)


def plant(parts):
    """Applies each patch of e2e/planted in a copy of the tree and runs the test that its first line names, which has to fail."""
    tree, missed = ROOT / "target/planted", []
    subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, capture_output=True)
    subprocess.run(["git", "worktree", "add", "--quiet", "--force", "--detach", tree, "HEAD"], cwd=ROOT, check=True)
    env = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/planted-build")}
    os.environ["FLANNEL_BIN_DIR"] = env["CARGO_TARGET_DIR"] + "/debug"
    patches = [path for path in sorted((ROOT / "e2e/planted").glob("*.patch")) if not parts or any(part in path.name for part in parts)]
    for path in patches:
        begun, (_, source, test) = time.monotonic(), path.read_text().split("\n", 1)[0].split(None, 2)
        lane = listed().get((source, test))
        subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=tree, check=True)
        applied = subprocess.run(["git", "apply", path], cwd=tree).returncode == 0
        # An end-to-end test runs the programs of the workspace. Another test needs its package alone, with the features that flanneld wants of it.
        package = next(folder for folder in (tree / source).parents if (folder / "Cargo.toml").exists())
        name = tomllib.loads((package / "Cargo.toml").read_text())["package"]["name"]
        which = ["--workspace"] if name == "e2e" else ["-p", f"path+file://{package}#{name}", "-p", "flanneld"]
        programs = build(tree, env, which) if lane and applied else None
        if not programs:
            outcome = "does not apply or build, or its test is not in e2e/tests.txt"
        else:
            passed, _, _, output = run_test(lane, *programs[source], test, LANES[lane][1], tree)
            outcome = "MISSED" if passed else "caught" if "\nrunning 1 test" in output else "not run: its test is not built"
        missed += [path.name] if outcome != "caught" else []
        print(f"{path.stem}: {outcome} by {test} ({lane}, {time.monotonic() - begun:.0f} s)", flush=True)
    subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT)
    print(f"{len(patches) - len(missed)} passed, {len(missed)} failed")
    return int(bool(missed))


def run_command(command, resume):
    """Returns the number of failures. --resume leaves out a command that passed on this commit."""
    tree = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    record, key = Record("commands"), f"{tree} {' '.join(command)}"
    if resume and tree and key in record.seconds:
        return 0
    begun = time.monotonic()
    # Cargo finds what the build built only with the same compiler.
    env = cargo_environment() if command[0] == "cargo" else os.environ
    failed = subprocess.run(command, cwd=ROOT, env={**env, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}).returncode != 0
    if not failed:
        record.seconds[key] = time.monotonic() - begun
        record.write()
    return int(failed)


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    resume, target, parts = "--resume" in sys.argv, words[0] if words else "", words[1:]
    if target == "list":
        programs = build()
        sys.exit(0 if programs and compare(programs, "--write" in sys.argv) else 1)
    if target == "planted":
        sys.exit(plant(parts))
    lanes = LANES if target == "only" else [target]
    stages = STAGES.get(target) or [("build", "build"), *((lane, lane) for lane in lanes)]
    if target != "only" and target not in STAGES and target not in LANES:
        sys.exit(__doc__)
    # A test that was renamed does not vanish from a target that names it.
    if unknown := [part for part in parts if not any(part in test for _, test in listed())]:
        sys.exit(f"run.py: no test of e2e/tests.txt has {', '.join(unknown)} in its name")
    programs, rows, all_passed, all_failed = None, [], 0, 0
    if target != "test":
        # Nightly, the newest etcd; daily, the distribution's.
        newest = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) / "flannel-rs/etcd-3.7"
        if newest.exists():
            os.environ.setdefault("FLANNEL_ETCD_DIR", str(newest))
    for name, what in stages:
        begun, (passed, failed) = time.monotonic(), (0, 0)
        print(f"== {name}", flush=True)
        if what == "build":
            programs = json.loads(PROGRAMS.read_text()) if "--built" in sys.argv else build()
            failed = 0 if programs and compare(programs, False) else 1
        elif isinstance(what, str):
            passed, failed = run_lane(what, programs, parts, resume)
        elif not parts:
            failed = run_command(what, resume and name != "setup")
        rows.append((name, time.monotonic() - begun, failed))
        all_passed, all_failed = all_passed + passed, all_failed + failed
        if failed and (name == "setup" or programs is None and what == "build"):
            break
    for name, seconds, failed in rows:
        print(f"stage {name:18} {seconds:6.0f} s{'   FAILED' if failed else ''}")
    total = sum(seconds for _, seconds, _ in rows)
    print(f"stage {'all':18} {total:6.0f} s")
    if target == "test" and total > 900:
        print(f"warning: {target} took {total / 60:.0f} minutes, and a newcomer waits 15 at most")
    print(f"{all_passed} passed, {all_failed} failed")
    sys.exit(1 if all_failed else 0)


main()
