"""The CUDA back end on the GPUs here: numbers, graphs, timing, and kernels that go wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from gemvbench import cli, inputs, oracle, process
from gemvbench.arm import FAMILIES, parse_arm
from gemvbench.backend.base import POISON, Launch
from gemvbench.backend.graph_plan import MOST_NODES
from gemvbench.case import ITEM_BYTES, VECTOR_TYPES, WEIGHT_TYPES, Gemv
from gemvbench.errors import CompileError, UserError
from gemvbench.jobs import choose, roof_jobs, rows1_sibling
from gemvbench.messages import Failed, KernelJob, Layout, Verified, Verify
from gemvbench.process import WorkerDiedError, converse
from gemvbench.runners import RoofRunner
from gemvbench.source import assemble
from gemvbench.verify import Verifier
from gemvbench.workspace import KernelRunner, Workspace

pytestmark = pytest.mark.cuda

SEED = 20
SHAPES = (
    (1, 1), (2, 3), (3, 7), (4, 5), (7, 301), (8, 1), (24, 2), (255, 5), (256, 4), (1000, 33),
    (2056, 6), (4096, 301), (5121, 2), (17408, 9),
)  # fmt: skip
OFFSETS = ((8, 0), (0, 8), (24, 40), (2, 0), (0, 1), (4, 12))
"""In elements, of W and x."""

AXES = FAMILIES["row"].axes
ROWS_AND_BLOCKS = [
    f"rows{rows}+block{block}" for rows in AXES["rows"] for block in (64, 128, 256, 512)
]

PROBE = """
// Every launch has its place in a turn; whatever comes out of turn is counted.
extern "C" __global__ void take_turn(unsigned *state, unsigned place, unsigned turns) {
    if (state[0] % turns != place)
        state[1]++;
    state[0]++;
}
"""
SIGNATURE = """(const unsigned short *w, const unsigned short *x, float *y, unsigned k,
    unsigned n, unsigned long long w_offset, unsigned x_offset)"""
ILLEGAL = f'extern "C" __global__ void bad{SIGNATURE} {{ y[1ull << 36] = 1; }}'
ENDLESS = f"""extern "C" __global__ void bad{SIGNATURE} {{
    while (*(volatile float *)y != 12345.0f) {{ }}
}}"""


def free_bytes() -> int:
    from cupy.cuda import runtime

    return int(runtime.memGetInfo()[0])


def find_devices():
    from gemvbench.backend.cuda_devices import find_cuda_devices

    try:
        found = find_cuda_devices()
    except UserError as refusal:
        pytest.skip(str(refusal))
    if not found:
        pytest.skip("no CUDA device here: no NVIDIA driver, or no GPU")
    return found


@pytest.fixture(scope="module")
def backend():
    info = find_devices()[0]
    from gemvbench.backend.cuda import CudaBackend

    return CudaBackend(info)


@pytest.fixture
def info(backend):
    return backend.info


def check(backend, case, arms):
    """Verify arms in this process; returns the constants that were really built."""
    info = backend.info
    jobs, siblings, constants = [], [], {}
    for name in arms:
        arm = parse_arm(name)
        choice, job = choose(arm, name, case, info)
        if job is None:
            continue
        jobs.append(job)
        constants[name] = dict(choice.outcome.constants)
        sibling = rows1_sibling(arm, case, info)
        if sibling is not None:
            siblings.append((name, sibling))
    request = Verify(device=info, case=case, jobs=tuple(jobs), siblings=tuple(siblings), seed=SEED)
    messages = list(Verifier(backend, request).messages())
    failed = [m for m in messages if isinstance(m, Failed)]
    assert not failed, (case.id, failed[0])
    verified = {m.arm: m for m in messages if isinstance(m, Verified)}
    assert set(verified) == {job.arm for job in jobs}
    wrong = [(m.arm, c.name, c.detail) for m in verified.values() for c in m.checks if not c.passed]
    assert not wrong, (case.id, wrong)
    return constants


def with_types(k, n, w, x, offsets=(0, 0)):
    w_offset, x_offset = offsets[0] * ITEM_BYTES[w], offsets[1] * ITEM_BYTES[x]
    return Gemv(k=k, n=n, w=w, x=x, w_offset=w_offset, x_offset=x_offset)


# Numbers.


@pytest.mark.parametrize("pack", sorted(AXES["pack"]))
@pytest.mark.parametrize("x", VECTOR_TYPES)
@pytest.mark.parametrize("w", WEIGHT_TYPES)
def test_row_arms(backend, w, x, pack):
    """All rows and blocks of one pack; on shapes it does not fit, what the ladder builds."""
    wide = "+wide1" if x == "f32" else ""
    arms = [f"pack{pack}+{rest}{wide}" for rest in ROWS_AND_BLOCKS]
    seen = set()
    for k, n in SHAPES:
        built = check(backend, with_types(k, n, w, x), arms)
        seen |= {constants["PACK"] for constants in built.values()}
    for offsets in OFFSETS:
        check(backend, with_types(1000, 5, w, x, offsets), arms)
    assert seen == set(range(pack + 1))


@pytest.mark.parametrize("pack", sorted(AXES["pack"]))
def test_half_accumulation(backend, pack):
    arms = [f"pack{pack}+{rest}+acc16" for rest in ROWS_AND_BLOCKS]
    for k, n in SHAPES[:-3]:
        built = check(backend, with_types(k, n, "f16", "f16"), arms)
        assert {constants["ACC"] for constants in built.values()} == {16}


@pytest.mark.parametrize("x", VECTOR_TYPES)
@pytest.mark.parametrize("w", WEIGHT_TYPES)
def test_base_auto_and_frozen(backend, w, x):
    for k, n in SHAPES:
        check(backend, with_types(k, n, w, x), ("base", "auto", "blockauto", "frozen"))


@pytest.mark.parametrize("x", ["f16", "bf16"])
@pytest.mark.parametrize("w", WEIGHT_TYPES)
def test_bulk(backend, w, x):
    """Rows of a third of a stage, of a whole one and of two; more workgroups than tiles."""
    if "bulk_copy" not in backend.info.capabilities:
        pytest.skip("no bulk copies here")
    for k, n in ((8, 1), (64, 1000), (2880, 5760), (5120, 96), (10248, 301), (17408, 513)):
        assert len(check(backend, with_types(k, n, w, x), ("bulk", "bulk+fenced1"))) == 2
    assert check(backend, with_types(1000, 5, w, x, (48, 32)), ("bulk",))
    assert check(backend, with_types(1001, 5, w, x), ("bulk",)) == {}


@pytest.mark.parametrize("x", ["f16", "bf16"])
@pytest.mark.parametrize("w", WEIGHT_TYPES)
def test_flight(backend, w, x):
    hopper = "clusters" in backend.info.capabilities
    arms = ["flight", "flight+ahead1+block512", "flight+ahead8+block64", "flight+ahead3"]
    if hopper:
        arms += ["flight+cluster2", "flight+cluster8+dependent1", "flight+dependent1+ahead5"]
    for k, n in ((8, 1), (64, 1000), (2880, 5760), (5120, 96), (17408, 513)):
        assert len(check(backend, with_types(k, n, w, x), arms)) == len(arms)
    assert check(backend, with_types(1000, 5, w, x, (48, 32)), arms)
    assert check(backend, with_types(1001, 5, w, x), arms) == {}


def test_a_matrix_too_large_for_the_hosts_sums(backend):
    """The exact check then takes sums that the device makes from the generator."""
    case = Gemv(k=17408, n=oracle.HOST_ELEMENTS // 17408 + 3)
    check(backend, case, ("base", "pack3", "pack2+rows4+block128"))


@pytest.mark.parametrize("first", [0, 5, (1 << 32) - 700])
@pytest.mark.parametrize("kind", inputs.KINDS)
@pytest.mark.parametrize("dtype", VECTOR_TYPES)
def test_fill_values_are_numpys_bit_for_bit(backend, dtype, kind, first):
    count, offset, period, phase = 3001, 7, 5, 2
    constants = (("TYPE", f"TYPE_{dtype.upper()}"), ("KIND", f"KIND_{kind.upper()}"))
    kernel = backend.compile(assemble("cuda/inputs.cu", constants), "fill_values")
    item = ITEM_BYTES[dtype]
    size = -(-(count + 2 * offset) * item // 4) * 4
    buffer = backend.alloc(size)
    backend.fill(buffer, POISON, size)
    numbers = (np.uint64(count), np.uint64(first), np.uint64(offset))
    stream = (np.uint32(SEED), np.uint32(3), np.uint32(period), np.uint32(phase))
    backend.run([Launch(kernel, 5, 64, (buffer, *numbers, *stream))])
    bits = np.uint32 if item == 4 else np.uint16
    got = backend.download(buffer, bits, size // item)
    expected = np.full(size // 4, POISON, np.uint32).view(bits).copy()
    values = inputs.values(kind, dtype, count, SEED, 3, first, period, phase)
    expected[offset : offset + count] = values.view(bits)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("kind", "period", "phase"), [("small", 1, 0), ("sparse", 7, 3)])
def test_exact_rows_are_numpys(backend, kind, period, phase):
    k, n = 1001, 77
    pattern = oracle.XPattern("test", kind, period, phase)
    case = Gemv(k=k, n=n)
    layout = Layout(turns=1, stride=4096)
    sums = Workspace(backend, case, layout, SEED).exact_sums_on_device(pattern)
    streams = (oracle.W_STREAM, oracle.X_STREAM)
    expected = inputs.exact_rows(k, range(n), SEED, *streams, kind, period, phase)
    np.testing.assert_array_equal(sums, expected)


# Memory and compilation.


def test_memory(backend):
    data = np.arange(1000, dtype=np.uint32)
    buffer = backend.upload(data[::2])
    np.testing.assert_array_equal(backend.download(buffer, np.uint32, 500), data[::2])
    backend.copy(buffer, 0, 1000, 400)
    np.testing.assert_array_equal(backend.download(buffer, np.uint32, 100, 1000), data[:200:2])
    backend.fill(buffer, POISON, 100)
    assert (backend.download(buffer, np.uint32, 25) == POISON).all()
    assert backend.download(buffer, np.uint32, 1, 100)[0] == 50


def test_memory_is_given_back_with_its_handle(backend):
    before = free_bytes()
    buffer = backend.alloc(1 << 30)
    assert free_bytes() <= before - (1 << 30)
    del buffer
    assert free_bytes() >= before - (64 << 20)


def test_too_much_memory_is_a_clear_error(backend, info):
    with pytest.raises(UserError, match=rf"{info.id} has .* GB free"):
        backend.alloc(info.memory_bytes * 2)
    backend.alloc(4096)  # and nothing is broken


def test_compile_errors(backend):
    with pytest.raises(CompileError, match="error"):
        backend.compile("no kernel", "entry")
    with pytest.raises(CompileError, match="no kernel named other"):
        backend.compile(PROBE, "other")
    first, again = (backend.compile(PROBE, "take_turn").binary for _ in range(2))
    assert first == again
    assert first.startswith(b"\x7fELF")


def test_what_the_device_says_of_itself(info):
    assert info.architecture.startswith("sm_")
    assert len(bytes.fromhex(info.uuid)) == 16
    assert info.pci.count(":") == 2
    assert 0 < info.free_bytes <= info.memory_bytes
    assert info.cache_bytes > 1 << 20


def test_state_of_the_gpu(info):
    from gemvbench.backend.nvml import read_gpu_state

    by_uuid, by_pci = read_gpu_state(info.uuid), read_gpu_state(info.pci)
    if not by_uuid.is_known:
        pytest.skip("no NVML here")
    assert by_uuid.sm_mhz > 0
    assert by_pci.is_known
    assert "GpuIdle" not in (by_uuid.throttle_reasons or ())


# Graphs and timing.


@pytest.mark.parametrize("turns", [1, 3, 100, MOST_NODES + 5])
def test_graphs_run_every_launch_once_and_in_order(backend, turns):
    kernel = backend.compile(PROBE, "take_turn")
    state = backend.alloc(8)
    ring = [
        Launch(kernel, 1, 1, (state, np.uint32(place), np.uint32(turns))) for place in range(turns)
    ]
    backend.fill(state, 0, 8)
    done = 0
    for count in (1, 2, 7, turns, 3 * turns + 1, MOST_NODES, 5 * MOST_NODES + 77, 7):
        timing = backend.time([ring[(done + step) % turns] for step in range(count)])
        done += count
        assert backend.download(state, np.uint32, 2).tolist() == [done, 0], count
        assert timing.timeline > 0
        assert timing.queued_ahead
        assert timing.kernel is None
    backend.run([ring[(done + step) % turns] for step in range(turns)])
    assert backend.download(state, np.uint32, 2).tolist() == [done + turns, 0]


def test_a_graph_follows_memory_that_moved(backend):
    """The same launches on other buffers are other graphs, even at an old address."""
    kernel = backend.compile(PROBE, "take_turn")
    for _ in range(5):
        state = backend.alloc(8)
        backend.fill(state, 0, 8)
        backend.time([Launch(kernel, 1, 1, (state, np.uint32(0), np.uint32(1)))] * 50)
        assert backend.download(state, np.uint32, 2).tolist() == [50, 0]


@pytest.fixture
def runner(backend, info):
    case = Gemv(k=4096, n=4096)
    space = Workspace(backend, case, Layout(turns=24, stride=case.weight_bytes + 4096), SEED)
    space.fill_weights("random")
    space.set_x(inputs.values("random", case.x, case.k, SEED, oracle.X_STREAM))
    _, job = choose(parse_arm("pack3"), "pack3", case, info)
    made = KernelRunner(space, backend.compile(job.text, job.entry), job)
    made.run(500)
    return made


def test_time_is_linear_in_length(runner):
    short, middle, long = (
        np.median([runner.time(calls).timeline for _ in range(5)]) for calls in (500, 2000, 5000)
    )
    early, late = (middle - short) / 1500, (long - middle) / 3000
    assert early == pytest.approx(late, rel=0.1)
    assert short / 500 == pytest.approx(late, rel=0.1)


def test_the_devices_clock_is_the_hosts(runner):
    seconds = runner.time(1000).timeline / 1000
    leg = runner.time(int(0.5 / seconds))
    assert leg.queued_ahead
    assert leg.timeline == pytest.approx(leg.host, rel=0.02)


def test_a_call_takes_no_less_than_reading_its_weights(backend, info, runner):
    """Faster than the fastest bare read would be a rotation that does not rotate."""
    case = Gemv(k=4096, n=4096)
    space = Workspace(backend, case, Layout(turns=64, stride=case.weight_bytes + 4096), SEED)
    space.fill_weights("random")
    bandwidths = []
    for job in roof_jobs(info):
        roof = RoofRunner(backend, space.pools(), backend.compile(job.text, job.entry), job)
        roof.run(3)
        long, short = (roof.time(calls) for calls in (50, 10))
        bandwidths.append(roof.bytes_per_call * 40 / (long.timeline - short.timeline))
    long, short = (runner.time(calls) for calls in (5000, 500))
    per_call = (long.timeline - short.timeline) / 4500
    assert runner.bytes_per_call / per_call < 1.05 * max(bandwidths)


def test_legs_after_the_first_cost_little(runner):
    """Whole turns are in the cache: what is left is the launch of a few graphs."""
    runner.time(5000)
    leg = runner.time(5000)
    assert leg.enqueue < 0.01


# Kernels that go wrong.


def bad_job(info, case, text):
    return KernelJob(
        arm="bad", device=info.id, text=text, entry="bad", workgroups=case.n, workgroup_size=32
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [(ILLEGAL, "illegal|IllegalAddress"), (ENDLESS, "no sign of life")],
    ids=["illegal access", "endless loop"],
)
def test_a_bad_kernel_ends_its_worker_and_is_charged(info, text, words, monkeypatch):
    monkeypatch.setenv(process.LIMIT_SCALE, "0.25")
    case = Gemv(k=64, n=8)
    _, good = choose(parse_arm("base"), "base", case, info)
    jobs = (good, bad_job(info, case, text))
    request = Verify(device=info, case=case, jobs=jobs, siblings=(), seed=SEED)
    with pytest.raises(WorkerDiedError, match=words) as caught:
        list(converse(request))
    assert caught.value.doing.arm == "bad"
    request = Verify(device=info, case=case, jobs=jobs[:1], siblings=(), seed=SEED)
    assert [m.passed for m in converse(request) if isinstance(m, Verified)] == [True]


@pytest.mark.parametrize("text", [ILLEGAL, ENDLESS], ids=["illegal access", "endless loop"])
def test_the_rest_of_a_run_survives_a_bad_file(info, text, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(process.LIMIT_SCALE, "0.25")
    path = tmp_path / "path.cu"
    path.write_text(text)
    words = ["verify", "--device", info.id, "--shape", "64x8", "--format", "json"]
    code = cli.main([*words, "--arm", f"bad={path}:bad", "--arm", "pack3"])
    verdicts = {r["arm"]: r["verdict"] for r in json.loads(capsys.readouterr().out)}
    bad = "bad"
    assert verdicts.pop(bad) == "FAILED"
    assert verdicts == {"pack3": "RIGHT"}
    assert code == 3


def test_a_user_file_that_is_right_is_measured_like_any_arm(info, tmp_path, capsys):
    path = tmp_path / "mine.cu"
    path.write_text(assemble("cuda/gemv.cu"))
    words = ["verify", "--device", info.id, "--shape", "256x64", "--format", "json"]
    code = cli.main([*words, "--arm", f"mine={path}:gemv_row+pack2+rows2"])
    verdicts = {r["verdict"] for r in json.loads(capsys.readouterr().out)}
    assert (code, verdicts) == (0, {"RIGHT"})


def test_a_block_with_two_gpus_keeps_them_apart():
    found = find_devices()
    if len(found) < 2:
        pytest.skip("one CUDA device here")
    from gemvbench.backend.cuda import CudaBackend

    backends = [CudaBackend(info) for info in found[:2]]
    states = []
    for opened in backends:
        kernel = opened.compile(PROBE, "take_turn")
        state = opened.alloc(8)
        opened.fill(state, 0, 8)
        states.append(Launch(kernel, 1, 1, (state, np.uint32(0), np.uint32(1))))
    for _ in range(3):
        for opened, launch in zip(backends, states, strict=True):
            opened.time([launch] * 10)
    for opened, launch in zip(backends, states, strict=True):
        assert math.isclose(opened.download(launch.args[0], np.uint32, 1)[0], 30)
