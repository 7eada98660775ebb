"""What cannot run is refused: exit code 2, one line that says what, where, the values and the
way out, nothing left.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from sim.setup.build import build
from sim.study.trials import prepared
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, write_trace
from sim.values.places import ROOT

SHAPE = ModelShape("small", "none", 4, 8, 2, 128, 120)
Configure = Callable[..., DictConfig]
FITS = ROOT / "capture" / "assets" / "predictors" / "tiny_mixtral"
SMALL = ("model=tiny_mixtral", "model.name=small", "model.sites=4")


@pytest.fixture(scope="session")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites of eight experts, lookahead for two; hidden sizes are tiny_mixtral's."""
    place = tmp_path_factory.mktemp("traces") / "small"
    write_trace(place, synthesize(SHAPE, tokens=6, sequences=4, prompt_tokens=3, lookahead=2))
    return place


def sim(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """``python -m sim`` in an empty folder."""
    return subprocess.run(
        [sys.executable, "-m", "sim", "hydra.run.dir=out", *overrides],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(folder: Path, *overrides: str) -> str:
    """The one line of a refusal."""
    done = sim(folder, *overrides)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    assert list(folder.iterdir()) == [], "a refusal must leave nothing behind"
    return line


CASES = {
    "a number with its unit": (
        "hardware.memory_gib=24GiB",
        r"hardware\.memory_gib='24GiB' must be a number in",
    ),
    "no number": (
        "hardware.links.pcie.peak_gb_per_s=fast",
        r"hardware\.links\.pcie\.peak_gb_per_s='fast' must be a",
    ),
    "a slip of units": (
        "hardware.links.pcie.peak_gb_per_s=31500000000",
        (
            r"hardware\.links\.pcie\.peak_gb_per_s=31500000000 must be from 0\.001 to 100000; give"
            r" 10\*\*9 bytes a second"
        ),
    ),
    "nothing resident": (
        "budget.resident_share=0",
        r"budget\.resident_share=0 must be above 0 and at most 1",
    ),
    "more than everything": (
        "budget.resident_share=1.5",
        r"budget\.resident_share=1\.5 must be above 0 and at most 1",
    ),
    "a share with a unit": (
        "budget.resident_share=half",
        r"budget\.resident_share='half' must be a number",
    ),
    "thresholds in the wrong order": (
        "precision=hobbit_mixtral precision.low_above=0.95",
        r"low_above=0\.95, skip_above=0\.9; set precision\.low_above and precision\.skip_above",
    ),
    "thresholds not given": (
        "precision=score_threshold",
        r"not set: precision\.low_above, precision\.skip_above; give them on the command line",
    ),
    "lookahead the trace does not have": (
        "predictor.sites=3",
        (
            r"records lookahead for 2 sites, but the predictor needs 3; .*choose predictor=none or"
            r" fewer predictor\.sites"
        ),
    ),
    "a pool too small for one token": (
        "budget.resident_share=0.05",
        r"pool 0 holds \d+ B, but one token may need 2 experts of 92160 B = 184320 B there; raise"
        r" budget\..*; "
        r"the smallest budget\.resident_share that works is 0\.0782$",
    ),
    "pools of which one is too small": (
        "precision=fp16 cache=lru_per_site budget.resident_share=0.2",
        r"the smallest budget\.resident_share that works is 0\.25$",
    ),
    "shares that are not all": (
        "cache.shares=[0.8,0.3]",
        r"cache\.shares=\[0\.8, 0\.3\] sum to 1\.1; they divide one budget: make it 1",
    ),
    "a budget beyond the memory": (
        "hardware.memory_gib=0.5 hardware.reserved_gib=0.497 budget.resident_share=1",
        (
            r"the device holds 0\.5 GiB, but the run needs 0\.50 GiB \(dense .*\); lower"
            r" budget\.resident_share"
        ),
    ),
    "a device that is full without slots": (
        "hardware.memory_gib=0.5",
        r"the device holds 0\.5 GiB, but the run needs 0\.50 GiB \(dense .*\): no budget of slots",
    ),
    "keys and values that do not fit": (
        "+model.kv_bits=100000000",
        (
            r"key-value cache of \d+ tokens takes [\d.]+ GiB, but hardware\.memory_gib=24 has"
            r" 23\.50 GiB .*; run fewer"
        ),
    ),
    "a negative bandwidth": (
        "hardware.links.pcie.peak_gb_per_s=-31.5",
        (
            r"hardware\.links\.pcie\.peak_gb_per_s=-31\.5 must be from 0\.001 to 100000; give"
            r" 10\*\*9 bytes a second"
        ),
    ),
    "no bandwidth": (
        "hardware.compute.memory_gb_per_s=nan",
        r"hardware\.compute\.memory_gb_per_s=nan must be from",
    ),
    "a figure that nobody knows": (
        "+hardware.links.pcie.peak_gbps=31.5",
        r"hardware \(conf/hardware/rtx4090_pcie4\.yaml\): hardware\.links\.pcie\.peak_gbps=31\.5:"
        r" unknown; Link knows "
        r"peak_gb_per_s, efficiency, .*; did you mean hardware\.links\.pcie\.peak_gb_per_s\?",
    ),
    "a section that nobody knows": (
        "+hardware.colour=red",
        r"hardware\.colour='red': unknown; Hardware knows name, ",
    ),
    "a figure that is missing": (
        "~hardware.links.pcie.efficiency",
        (
            r"not given: hardware\.links\.pcie\.efficiency \(there is peak_gb_per_s=31\.5,"
            r" overhead_us="
        ),
    ),
    "a section that is missing": (
        "~hardware.compute",
        r"not given: hardware\.compute \(there is name='rtx4090_pcie4'",
    ),
    "a kind of section that there is not": (
        "hardware.links.pcie._target_=sim.machine.Lnk",
        r"hardware\.links\.pcie\._target_='sim\.machine\.Lnk' names nothing that can be imported",
    ),
    "a mechanism's key that nobody knows": (
        "+cache.scpe=global",
        r"cache: cache\.scpe='global': unknown; .* knows .*; did you mean cache\.scope\?",
    ),
    "figures that are missing": (
        "hardware=generic",
        (
            r"not set: hardware\.compute\.memory_gb_per_s, hardware\.links\.link\.peak_gb_per_s,"
            r" hardware\.memory_gib; g"
        ),
    ),
    "more reserved than there is": (
        "hardware.reserved_gib=30",
        r"hardware\.reserved_gib=30 exceeds hardware\.memory_gib=24",
    ),
    "requests longer than the trace": (
        "workload=hobbit_128_128",
        (
            r"trace .* is too short for workload\.prompt_tokens=128 and decode_tokens=128: sequence"
            r" \d+ has 3 prompt and 6"
        ),
    ),
    "another shape": (
        "model.sites=16",
        r"trace .*4 x 8 top-2.*16 x 8 top-2; .*; for gates of small moelab ask model=small finds",
    ),
    "a transplant that is not declared": (
        "model.hidden=4096",
        r"128 x 120.* 4096 x 120; .*say so: model\.gates_of=small model\.sizes_of=small",
    ),
    "no trace there": (
        "trace.path=nowhere",
        r"header\.json.*is missing, or is no file; name the directory of a trace",
    ),
    "a count that is no number": (
        "trace.max_sequences=two",
        r"trace\.max_sequences='two' must be a whole number",
    ),
    "no sequences": (
        "trace.max_sequences=-1",
        r"trace\.max_sequences=-1 must be a whole number >= 1",
    ),
    "a flag that is no list": (
        "trace.exclude=abc",
        r"trace\.exclude='abc' must be a list of flags",
    ),
    "flags taken away": ("trace.exclude=null", r"trace\.exclude=None must be a list of flags"),
    "the links taken away": (
        "hardware.links=null",
        r"hardware\.links=None must hold at least one link",
    ),
    "a link taken away": (
        "hardware.links.pcie=null",
        r"hardware\.links\.pcie=None must be a section",
    ),
    "a section taken away": ("budget=null", r"budget=None must be a section of values"),
    "a switch that is none": (
        "loader.cancel_stale=maybe",
        r"loader\.cancel_stale='maybe' must be true or false",
    ),
    "true for a count": (
        "loader.prefetch_budget=true",
        r"loader\.prefetch_budget=True is unknown; allowed: all",
    ),
    "true for a number": (
        "loader.in_flight=true",
        r"loader\.in_flight=True is unknown; allowed: 1, 2",
    ),
    "half a site": ("predictor.sites=2.5", r"predictor\.sites=2\.5 must be a whole number >= 1"),
    "a weight that is no number": (
        "cache.weights.lru=x",
        r"cache\.weights need lru, lfu, lhu, fld, each a number",
    ),
    "a negative weight": (
        "cache.weights.lhu=-0.1",
        r"cache\.weights need lru, lfu, lhu, fld, each a number >= 0 and .*; got .*'lhu': -0\.1",
    ),
    "quotas larger than the cache": (
        "precision=fp16 cache=lru_per_site cache.quotas=[8,8,8,8] budget.resident_share=0.5",
        (
            r"cache\.quotas=\[8, 8, 8, 8\] take 32 slots, but the cache has 16; lower them, or"
            r" raise budget\."
        ),
    ),
    "a fit of another trace": (
        f"predictor=next_site predictor.artefact={FITS}/next_site.json",
        (
            r"next_site\.json was fitted on trace tiny_mixtral with model shape .*, this run of .*"
            r" has .*; fit one with"
        ),
    ),
    "a fit of another kind": (
        f"predictor=next_site predictor.artefact={FITS}/activation_matrices.json",
        (
            r"activation_matrices\.json was fitted on .* with kind activation_matrices, .* has"
            r" next_site; fit"
        ),
    ),
    "no fit for this trace": (
        "predictor=next_site",
        (
            r"no fit next_site comes with the project for trace \w+; fit one with moelab fit"
            r" predictor=next_site trace\.path="
        ),
    ),
    "norms the trace does not have": (
        "workload.lookahead_norm=renormed",
        r"has lookahead norms raw, not 'renormed'; set workload\.lookahead_norm to one of these",
    ),
    "active shares the trace does not have": (
        "system=floe predictor=none precision=fp16 payload=active_share",
        r"records no active shares of experts' channels, which payload ActiveShare goes by;",
    ),
    "a key that hydra was told to add": (
        "+sytem=lru",
        r"unknown settings sytem; known: bounds, budget, cache, ",
    ),
    "a budget that is none": (
        "+budget.resident_shar=0.25",
        r"unknown settings budget\.resident_shar; known: budget\.",
    ),
    "files nobody asked for": ("outputs=some", r"unknown outputs=some; allowed: all, summary"),
    "a split that is none": ("trace.split=test", r"trace\.split=test; allowed: fit, eval, all"),
}


@pytest.mark.alike
@pytest.mark.parametrize(("overrides", "message"), CASES.values(), ids=CASES)
def test_what_cannot_run_is_refused_with_its_values_and_the_way_out(
    configure: Configure, small_trace: Path, overrides: str, message: str
) -> None:
    line = not_run(configure, small_trace, *overrides.split())
    assert re.search(message, line), line


def test_gates_of_a_shape_that_no_model_has_are_refused_with_words_that_run(
    configure: Configure, tmp_path: Path
) -> None:
    shape = ModelShape("own", "none", 5, 64, 4, 128, 120)
    write_trace(tmp_path / "own", synthesize(shape, tokens=4, sequences=2, prompt_tokens=2))
    where = ("system=lru", f"trace.path={tmp_path / 'own'}")
    with pytest.raises(ValueError, match="5 x 64 top-4") as refusal:
        build(configure(*where), "x")
    told = re.search(r"choose (model=[^(]+) \(all but the experts as of ", str(refusal.value))
    assert told
    model = build(configure(*where, *told[1].split()), "x").model
    assert (model.sites, model.experts, model.top_k) == (5, 64, 4)
    assert (model.hidden, model.expert_intermediate) == (128, 120)


def not_run(configure: Configure, trace: Path, *overrides: str) -> str:
    """The message of a refusal, which ``main`` prints after ``error:``; it must be one line."""
    with pytest.raises((ValueError, OSError)) as refusal:
        build(configure(*SMALL, f"trace.path={trace}", *overrides), " ".join(("x", *overrides)))
    (line,) = str(refusal.value).splitlines()
    return line


NVME = "hardware=rtx4090_nvme"
COMBINATIONS = {
    "chunks without demands first": (
        "loader.chunk_bytes=4096 loader.demand_first=false",
        r"chunk_bytes has no use",
    ),
    "chunks on shared links": (
        "loader.chunk_bytes=4096 hardware.links.pcie.engines=2",
        (
            r"loader\.chunk_bytes=4096 needs one engine on every link, got engines \[2\]; set"
            r" hardware engines to 1"
        ),
    ),
    "cut-through on a shared link": (
        f"{NVME} hardware.links.nvme.engines=2",
        r"link 1 has 2 engines",
    ),
    "cut-through to nowhere": (
        "hardware.links.pcie.head_bytes=4096",
        r"0 for link 0, which ends at the device",
    ),
    "write-back of chunks": (
        "loader.write_back=true loader.chunk_bytes=4096",
        r"loader\.chunk_bytes and loader\.write_back cannot be",
    ),
    "write-back of what overflows": (
        "loader.write_back=true loader.retention=after_batch",
        r"loader\.write_back needs loader\.retention=strict",
    ),
    "write-back of what is exchanged": (
        "loader.write_back=true loader.staging_slots=2",
        r"loader: loader\.write_back and staging cannot be combined",
    ),
    "staging without slots": (
        "loader.destination=staging",
        r"loader\.destination=staging needs loader\.staging_slots >= 1",
    ),
    "all layers streamed": (
        "loader.dense_slots=4",
        r"loader\.dense_slots=4 must be below the 4 sites",
    ),
    "a future that depends on time": (
        "precision=fp16 cache=belady workload=continuous_4 workload.arrivals_per_s=10",
        r"cache Belady knows the future only .*; set workload\.arrivals_per_s=null",
    ),
    "a CPU that is not described": (
        "placement=absent_on_cpu hardware.cpu=null",
        r"hardware rtx4090_pcie4 has no cpu section; choose placement=load",
    ),
    "RAM that holds no expert": (
        f"{NVME} hardware.ram.capacity_gib=0.00001",
        (
            r"hardware\.ram\.capacity_gib=1e-05 holds no expert of 92160 B; raise it, or set"
            r" hardware\.ram=null"
        ),
    ),
    "RAM at the end of no link": (
        f"{NVME} hardware.ram.filled_by=ssd",
        r"ram\.filled_by='ssd' must be .*: nvme",
    ),
    "RAM on the device": (
        "+hardware.ram={_target_:sim.machine.Ram,capacity_gib:1,filled_by:pcie}",
        r"filled_by='pcie' must be a link that ends in RAM: this machine has none",
    ),
    "an unknown batching": ("workload.batching=dynamic", r"workload\.batching=dynamic"),
    "an unknown value of a switch": (
        "loader.wait=never",
        r"loader\.wait=never is unknown; allowed: wait_all, as_",
    ),
}


# Contracts: C142
@pytest.mark.alike
@pytest.mark.parametrize(("overrides", "message"), COMBINATIONS.values(), ids=COMBINATIONS)
def test_what_does_not_go_together_is_refused_by_name(
    configure: Configure, small_trace: Path, overrides: str, message: str
) -> None:
    line = not_run(configure, small_trace, "budget.resident_share=0.7", *overrides.split())
    assert re.search(message, line), line


@pytest.mark.parametrize("harm", ["truncated", "altered", "missing"])
def test_a_harmed_trace_is_refused_by_file(
    configure: Configure, tmp_path: Path, small_trace: Path, harm: str
) -> None:
    place = harmed(small_trace, tmp_path / "trace", harm)
    line = not_run(configure, place)
    expected = (
        r"routes\.parquet: file"
        if harm == "missing"
        else r"routes\.parquet: sha256 .* altered or truncated"
    )
    assert re.search(expected, line), line


def harmed(trace: Path, place: Path, harm: str) -> Path:
    shutil.copytree(trace, place)
    routes = place / "routes.parquet"
    content = bytearray(routes.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "missing":
        routes.unlink()
    else:
        routes.write_bytes(content[:-1] if harm == "truncated" else content)
    return place


# ---- the program


@pytest.mark.alike
@pytest.mark.parametrize("case", ["no number", "a pool too small for one token", "another shape"])
def test_the_program_refuses_in_one_line_with_exit_code_2_and_leaves_nothing(
    tmp_path: Path, small_trace: Path, case: str
) -> None:
    overrides, message = CASES[case]
    line = refused(tmp_path, *SMALL, f"trace.path={small_trace}", *overrides.split())
    assert re.search(message, line), line


def test_the_program_refuses_a_file_of_ones_own_that_is_no_yaml(
    tmp_path: Path, small_trace: Path
) -> None:
    """The parser's traceback had thirty lines."""
    file = tmp_path / "mine" / "cache" / "mru.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("_target_: mru.MRU\n  scope: [\n", encoding="utf-8")
    words = ("cache=mru", f"hydra.searchpath=[file://{tmp_path / 'mine'}]")
    (tmp_path / "run").mkdir()
    line = refused(tmp_path / "run", *SMALL, f"trace.path={small_trace}", *words)
    assert re.search(r"mapping values are not allowed here in .*mru\.yaml.*, line 2", line), line
    with pytest.raises(ValueError, match=r"^mapping values .*mru\.yaml.*, line 2"):
        prepared([*SMALL, *words])


OF_POLICIES = (
    "a fit of another trace",
    "quotas larger than the cache",
    "a negative weight",
    "thresholds in the wrong order",
    "lookahead the trace does not have",
    "active shares the trace does not have",
    "norms the trace does not have",
)


@pytest.mark.thorough
@pytest.mark.parametrize("case", OF_POLICIES)
def test_the_program_refuses_what_a_policy_cannot_work_with_before_the_run(
    tmp_path: Path, small_trace: Path, case: str
) -> None:
    test_the_program_refuses_in_one_line_with_exit_code_2_and_leaves_nothing(
        tmp_path, small_trace, case
    )


@pytest.mark.thorough
def test_the_program_refuses_a_harmed_trace_likewise(tmp_path: Path, small_trace: Path) -> None:
    place, folder = harmed(small_trace, tmp_path / "trace", "truncated"), tmp_path / "empty"
    folder.mkdir()
    assert "routes.parquet: sha256" in refused(folder, *SMALL, f"trace.path={place}")


@pytest.mark.thorough
def test_a_refusal_leaves_no_dated_folder_of_hydras(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sim", "budget.resident_share=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, small_trace: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = sim(
        tmp_path,
        *SMALL,
        f"trace.path={small_trace}",
        "budget.resident_share=0.7",
        "output_dir=file/out",
    )
    assert done.returncode == 2, done
    assert re.fullmatch(
        r"error: output_dir=file/out cannot be written .*; choose another one\n", done.stderr
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.thorough
def test_runs_are_not_mixed_in_one_folder(tmp_path: Path, small_trace: Path) -> None:
    words = (*SMALL, f"trace.path={small_trace}", "budget.resident_share=0.7", "output_dir=mine")
    assert sim(tmp_path, *words).returncode == 0
    again = sim(tmp_path, *words, "system=lru")
    assert again.returncode == 2
    assert again.stderr == (
        "error: output_dir=mine is not empty; choose another one, leave the word out for a new one,"
        " or add overwrite=yes\n"
    )
    summary = tmp_path / "mine" / "summary.json"
    before = summary.read_bytes()
    # What cannot run leaves what was there, and what can takes its place.
    assert sim(tmp_path, *words, "budget.resident_share=9", "overwrite=yes").returncode == 2
    assert summary.read_bytes() == before
    assert sim(tmp_path, *words, "system=lru", "overwrite=yes").returncode == 0
    assert json.loads(summary.read_text(encoding="utf-8"))["system"] == "lru"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_key_that_there_is_not_is_refused_with_those_that_are(tmp_path: Path) -> None:
    done = sim(tmp_path, "cache.x=3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: cache.x=3: there is no x in cache; it has ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_same_words_without_a_mistake_run(tmp_path: Path, small_trace: Path) -> None:
    """The refusals above are not refusals of everything."""
    done = sim(
        tmp_path,
        *SMALL,
        f"trace.path={small_trace}",
        "budget.resident_share=0.7",
        "outputs=summary",
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["summary.json"]
