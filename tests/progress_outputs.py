"""Progress output of common tools, as (second, text), and the end of the cell.

The cases before `docker` were written before `policy/progress_estimate`, the others
after it. In the first runs, 33 of 34 and 14 of 15 estimates were right: the estimate
for the slow start came too late, and `mnist` got an estimate. `END` names cases
whose end can be estimated, `NONE` those where it cannot. `RESETS` are bars that restart
in each round, without the number of rounds: until the second round, the end is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

ProgressOutput = Iterator[tuple[float, str]]


def bar(share: float, width: int = 10) -> str:
    return ("█" * int(share * width)).ljust(width)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def tqdm(
    count: int, per: float, name: str = "", options: str = "", begin: float = 0.0
) -> ProgressOutput:
    for n in range(count + 1):
        t, head = begin + n * per, f"{name}: " if name else ""
        remaining = clock((count - n) * per) if n else "?"
        yield (
            t,
            f"\r{head}{n / count:4.0%}|{bar(n / count)}| {n}/{count} [{clock(n * per)}<{remaining}, {1 / per:5.2f}it/s{options}]",
        )


def tqdm_plain() -> ProgressOutput:
    return tqdm(300, 0.9)


def tqdm_named() -> ProgressOutput:
    return tqdm(40, 12.0, "Scoring", ", loss=0.513")


def tqdm_slow_start() -> ProgressOutput:
    """The first items compile; the rest take a third of the time."""
    t = 0.0
    for n in range(101):
        yield t, f"\r{n / 100:4.0%}|{bar(n / 100)}| {n}/100 [{clock(t)}<?, 1.1s/it]"
        t += 9.0 if n < 10 else 3.0


def tqdm_unknown() -> ProgressOutput:
    for n in range(400):
        yield float(n), f"\r{n * 17}it [{clock(n)}, 17.02it/s]"


def tqdm_rounds() -> ProgressOutput:
    for epoch in range(4):
        yield from tqdm(60, 1.0, f"Epoch {epoch}", begin=62.0 * epoch)
        yield 62.0 * epoch + 61, "\n"


def tqdm_nested() -> ProgressOutput:
    """Two bars, the outer one above; the cursor moves up to redraw."""
    for n in range(10):
        yield (
            n * 20.0,
            f"\rOuter: {n / 10:4.0%}|{bar(n / 10)}| {n}/10 [{clock(n * 20)}<{clock(200 - 20 * n)}, 20.00s/it]",
        )
        for k in range(21):
            yield (
                n * 20.0 + k * 0.95,
                f"\n\rInner: {k / 20:4.0%}|{bar(k / 20)}| {k}/20 [00:{k:02d}<00:{20 - k:02d}, 1.05it/s]\x1b[A",
            )
    yield 200.0, f"\rOuter: 100%|{bar(1)}| 10/10 [03:20<00:00, 20.00s/it]\n"


def rich_bar() -> ProgressOutput:
    for n in range(0, 151):
        share = n / 150
        full = int(40 * share)
        yield (
            n * 2.0,
            (
                f"\r\x1b[2KTraining \x1b[38;2;249;38;114m{'━' * full}\x1b[0m\x1b[38;5;237m╺{'━' * (39 - full)}\x1b[0m "
                f"\x1b[35m{share:4.0%}\x1b[0m \x1b[36m0:{(300 - 2 * n) // 60:02d}:{(300 - 2 * n) % 60:02d}\x1b[0m"
            ),
        )


def keras() -> ProgressOutput:
    """Ten epochs of sixty steps, with `verbose=1`."""
    for epoch in range(10):
        begin = epoch * 31.0
        yield begin, f"Epoch {epoch + 1}/10\n"
        for n in range(1, 61):
            full = int(20 * n / 60)
            yield (
                begin + n * 0.5,
                (
                    f"\r\x1b[1m{n:2d}/60\x1b[0m \x1b[32m{'━' * full}\x1b[0m\x1b[37m{'━' * (20 - full)}\x1b[0m \x1b[1m{30 - n // 2}s\x1b[0m "
                    f"500ms/step - accuracy: {0.1 + epoch / 12:.4f} - loss: {2.3 - epoch / 5:.4f}"
                ),
            )
        yield begin + 30.9, " - val_accuracy: 0.7012 - val_loss: 0.9120\n"


def keras_two() -> ProgressOutput:
    """Twelve epochs, with `verbose=2`."""
    for epoch in range(12):
        yield epoch * 25.0, f"Epoch {epoch + 1}/12\n"
        yield (
            epoch * 25.0 + 24.5,
            f"1563/1563 - 24s - 16ms/step - accuracy: {0.3 + epoch / 20:.4f} - loss: {1.9 - epoch / 9:.4f}\n",
        )


def lightning() -> ProgressOutput:
    for epoch in range(5):
        for n in range(0, 201, 4):
            t = epoch * 66.0 + n * 0.33
            yield (
                t,
                f"\rEpoch {epoch}: {n / 200:4.0%}|{bar(n / 200)}| {n}/200 [{clock(n * 0.33)}<{clock((200 - n) * 0.33)},  3.03it/s, v_num=0, train_loss=0.312]",
            )


def xgboost() -> ProgressOutput:
    for n in range(300):
        yield (
            n * 1.0,
            f"[{n}]\ttrain-rmse:{10 / (n + 1):.5f}\tvalid-rmse:{11 / (n + 1):.5f}\n",
        )


def lightgbm() -> ProgressOutput:
    for n in range(100, 3100, 100):
        yield (
            n * 0.1,
            f"[{n}]\ttraining's auc: {0.8 + n / 20000:.6f}\tvalid_0's auc: {0.78 + n / 20000:.6f}\n",
        )


def pip() -> ProgressOutput:
    for n in range(0, 241):
        full = n // 6
        yield (
            3 + n * 0.5,
            f"\r     {'━' * full}{' ' * (40 - full)} {n * 3.2:.1f}/766.7 MB 6.4 MB/s eta 0:0{(240 - n) // 120}:{((240 - n) // 2) % 60:02d}",
        )


def wget() -> ProgressOutput:
    for n in range(0, 101):
        yield (
            n * 2.5,
            f"\rdata.tar.gz      {n:3d}%[{'=' * (n // 5)}>{' ' * (20 - n // 5)}] {n * 1.2:6.2f}M  490KB/s    eta {int((100 - n) * 2.5)}s    ",
        )


def epochs() -> ProgressOutput:
    for n in range(1, 51):
        yield n * 7.0, f"epoch {n}/50: loss={2.3 / n:.4f} acc={1 - 1 / (n + 1):.3f}\n"


def rows() -> ProgressOutput:
    for n in range(0, 120_001, 2000):
        yield 4 + n / 500, f"Processed {n:,} of 120,000 rows\n"


def percents() -> ProgressOutput:
    for n in range(0, 101, 5):
        yield n * 6.0, f"{n} %\n"


def steps_and_gpu() -> ProgressOutput:
    for n in range(0, 20_001, 100):
        yield (
            n / 60,
            f"step {n}/20000 | loss {3 - n / 9000:.3f} | lr 3.0e-04 | GPU {95 + n // 100 % 4}% | 61.2 tok/s\n",
        )


def grid_search() -> ProgressOutput:
    yield 0.1, "Fitting 5 folds for each of 12 candidates, totalling 60 fits\n"
    for n in range(60):
        yield (
            5.0 * (n + 1),
            f"[CV {n % 5 + 1}/5] END C={n // 5}, gamma=0.1, kernel=rbf;, score=0.9{n:02d} total time=   4.9s\n",
        )


def joblib() -> ProgressOutput:
    for n in (1, 2, 3, 5, 8, 11, 15, 19, 24, 29, 35, 41, 48, 55, 63, 71, 80):
        yield (
            n * 4.0,
            f"[Parallel(n_jobs=2)]: Done {n:3d} out of  80 | elapsed: {n * 4 / 60:4.1f}min remaining: {(80 - n) * 4 / 60:4.1f}min\n",
        )


def trainer() -> ProgressOutput:
    """The bar of a trainer, with log lines in between."""
    for n in range(0, 501):
        yield (
            n * 0.8,
            f"\r{n / 500:4.0%}|{bar(n / 500)}| {n}/500 [{clock(n * 0.8)}<{clock((500 - n) * 0.8)},  1.25it/s]",
        )
        if n % 50 == 49:
            yield (
                n * 0.8 + 0.1,
                f"\n{{'loss': {2 - n / 400:.4f}, 'grad_norm': 1.2, 'learning_rate': {5e-5 * (1 - n / 500):.2e}, 'epoch': {n / 250:.2f}}}\n",
            )


def logged() -> ProgressOutput:
    for n in range(1, 31):
        yield (
            n * 11.0,
            f"2026-11-23 09:{n * 11 // 60:02d}:{n * 11 % 60:02d},123 INFO trainer: finished epoch {n}/30 (val_loss 0.{900 - n})\n",
        )


def dated() -> ProgressOutput:
    """A date that looks like a fraction."""
    for n in range(60):
        yield (
            n * 5.0,
            f"11/23 09:{n * 5 // 60:02d}:{n * 5 % 60:02d} batch {n} written, 3 files\n",
        )


def accuracy_percentage() -> ProgressOutput:
    """A percentage that is not the progress."""
    for n in range(1, 41):
        yield n * 8.0, f"epoch {n}: validation accuracy {100 * (1 - 0.4 / n):.1f}%\n"


def memory() -> ProgressOutput:
    for n in range(60):
        yield (
            n * 5.0,
            f"batch {n}: GPU memory {9.1 + (n * 7 % 11) / 10:.1f}/16.0 GB, loss 0.{999 - n}\n",
        )


def epochs_and_batches() -> ProgressOutput:
    for epoch in range(1, 6):
        for batch in range(1, 41):
            yield (
                (epoch - 1) * 60.0 + batch * 1.5,
                f"Epoch [{epoch}/5], Step [{batch}/40], Loss: 0.{5000 - 90 * batch}\n",
            )


def bar_then_silence() -> ProgressOutput:
    yield from tqdm(20, 1.0, "Loading")
    yield 21.0, "\n"
    yield 300.0, "done\n"


def pymc() -> ProgressOutput:
    for n in range(0, 101):
        remaining = (100 - n) * 3
        yield (
            n * 3.0,
            f"\rSampling 4 chains, 0 divergences {'━' * (n // 3)} {n}% 0:{remaining // 60:02d}:{remaining % 60:02d} / 0:{n * 3 // 60:02d}:{n * 3 % 60:02d}",
        )


def pages() -> ProgressOutput:
    for n in range(1, 341):
        yield (
            n * 1.3,
            f"[{n}/340] GET https://api.example.org/2024/11/items?page={n} 200 OK (50 items, 12/50 new)\n",
        )


def prose_fraction() -> ProgressOutput:
    yield 1.0, "Loading 3 of 7 files that changed\n"
    for n in range(80):
        yield (
            3 + n * 4.0,
            f"computing distances, still at it: best so far {n * 13 % 97}.{n}\n",
        )


def optuna() -> ProgressOutput:
    for n in range(50):
        yield (
            n * 6.0,
            f"[I 2026-11-23 09:0{n % 10}:11,412] Trial {n} finished with value: 0.{812 + n} and parameters: {{'lr': 0.00{n + 1}}}. Best is trial {n // 2} with value: 0.8{n}.\n",
        )


def simulation() -> ProgressOutput:
    for n in range(0, 1001):
        yield (
            n * 0.4,
            f"t = {n / 10:.1f} / 100.0, dt = 1.0e-01, energy = -{123.4 + n / 999:.5f}\n",
        )


def slowing_items() -> ProgressOutput:
    """Each item takes a little longer than the one before."""
    t = 0.0
    for n in range(1, 61):
        t += 2 + n / 15
        yield t, f"file {n} of 60\n"


def downloads() -> ProgressOutput:
    """Several files, each with its own bar."""
    t = 0.0
    for name, size in (
        ("config.json", 4),
        ("tokenizer.json", 20),
        ("model-00001-of-00003.safetensors", 130),
        ("vocab.txt", 6),
        ("model-00002-of-00003.safetensors", 120),
    ):
        yield from tqdm(size, 1.0, name, begin=t)
        t += size + 1
        yield t, "\n"


def docker() -> ProgressOutput:
    for n in range(1, 15):
        yield (n - 1) * 20.0, f"Step {n}/14 : RUN make part{n}\n"
        yield (n - 1) * 20.0 + 9, f" ---> Running in {n}f3a9c{n}0d12\n"
    yield 280.0, "Successfully built\n"


def ninja() -> ProgressOutput:
    for n in range(1, 1501):
        yield (
            n * 0.2,
            f"\r[{n}/1500] Building CXX object src/core/CMakeFiles/core.dir/part_{n % 77}/x{n}.cpp.o",
        )


def pytest_dots() -> ProgressOutput:
    for n in range(1, 61):
        yield (
            n * 5.0,
            f"tests/test_part_{n:02d}.py {'.' * (n % 13 + 3)}{' ' * 30}[{int(100 * n / 60):3d}%]\n",
        )


def catboost() -> ProgressOutput:
    for n in range(0, 1000, 10):
        yield (
            n * 0.3,
            f"{n}:\tlearn: 0.{5000 - n}\ttest: 0.{5100 - n}\tbest: 0.{5100 - n} ({n})\ttotal: {n * 0.3:.1f}s\tremaining: {(1000 - n) * 0.3:.1f}s\n",
        )


def gensim() -> ProgressOutput:
    for n in range(0, 300, 2):
        yield (
            float(n),
            f"2026-11-23 10:{n // 60:02d}:{n % 60:02d},817 : INFO : EPOCH 0 - PROGRESS: at {n / 3:.2f}% examples, 913302 words/s, in_qsize 15, out_qsize 0\n",
        )


def dask() -> ProgressOutput:
    for n in range(0, 301):
        yield (
            float(n),
            f"\r[{'#' * (n * 40 // 300)}{' ' * (40 - n * 40 // 300)}] | {n * 100 // 300}% Completed | {n}.{n % 10}s",
        )


def stan() -> ProgressOutput:
    """Four chains, one after the other."""
    for chain in range(1, 5):
        for n in range(0, 2001, 100):
            phase = "Warmup" if n <= 1000 else "Sampling"
            yield (
                (chain - 1) * 75.0 + n * 0.035,
                f"Chain {chain}: Iteration: {max(n, 1):4d} / 2000 [{n // 20:3d}%]  ({phase})\n",
            )


def mnist() -> ProgressOutput:
    for epoch in range(1, 6):
        for batch in range(0, 938, 10):
            yield (
                (epoch - 1) * 60.0 + batch * 0.06,
                f"Train Epoch: {epoch} [{batch * 64}/60000 ({100 * batch / 938:.0f}%)]\tLoss: 0.{4000 - batch:06d}\n",
            )
        yield (
            epoch * 60.0 - 1,
            f"\nTest set: Average loss: 0.0{epoch}, Accuracy: {9000 + 150 * epoch}/10000 ({90 + epoch}%)\n\n",
        )


def yolo() -> ProgressOutput:
    """Epoch n/m at the beginning of each line, and a bar for its batches."""
    for epoch in range(1, 11):
        yield (
            (epoch - 1) * 30.0,
            "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n",
        )
        for n in range(0, 101, 4):
            yield (
                (epoch - 1) * 30.0 + 0.2 + n * 0.27,
                f"\r      {epoch}/10      2.31G     1.2{n:03d}      2.1{n:03d}      1.3{n:03d}         {n % 30 + 5}        640: {n:3d}%|{bar(n / 100)}| {n}/100 [00:{int(n * 0.27):02d}<00:{27 - int(n * 0.27):02d},  3.70it/s]",
            )


def rsync() -> ProgressOutput:
    for n in range(0, 101):
        yield (
            n * 3.0,
            f"\r  {n * 12345678:,}  {n:2d}%    4.11MB/s    0:{(100 - n) * 3 // 60:02d}:{(100 - n) * 3 % 60:02d}",
        )


def hf_map() -> ProgressOutput:
    for n in range(0, 100_001, 1000):
        yield (
            n * 0.002,
            f"\rMap (num_proc=4): {n / 100_000:4.0%}|{bar(n / 100_000)}| {n}/100000 [{clock(n * 0.002)}<{clock(200 - n * 0.002)}, 500.00 examples/s]",
        )


def crawler() -> ProgressOutput:
    for n in range(0, 300, 10):
        yield (
            float(n),
            f"2026-11-23 10:0{n // 60}:{n % 60:02d} [scrapy.extensions.logstats] INFO: Crawled {n * 7} pages (at 420 pages/min), scraped {n * 5} items (at 300 items/min)\n",
        )


def fastai() -> ProgressOutput:
    yield 0.0, "epoch     train_loss  valid_loss  accuracy  time\n"
    for epoch in range(8):
        yield (
            (epoch + 1) * 40.0,
            f"{epoch}         0.{500 - epoch}    0.{520 - epoch}    0.8{epoch}0000  00:40\n",
        )
        for n in range(0, 101, 5):
            yield (
                (epoch + 1) * 40.0 + n * 0.39,
                f"\r{n / 100:.2%} [{n}/100 00:{int(n * 0.39):02d}<00:{39 - int(n * 0.39):02d} 0.5{n:02d}]",
            )


def speech() -> ProgressOutput:
    for n in range(0, 61):
        yield (
            n * 4.0,
            f"[00:{n:02d}.000 --> 00:{n + 1:02d}.000]  and so on, one of 3 people said, half of it\n",
        )


def batches_of_folds() -> ProgressOutput:
    for fold in range(1, 6):
        yield (fold - 1) * 60.0, f"===== Fold {fold} of 5 =====\n"
        for n in range(1, 21):
            yield (
                (fold - 1) * 60.0 + n * 2.9,
                f"  epoch {n:02d}/20  train 0.{700 - n}  valid 0.{720 - n}  ({n % 7}/20 patience)\n",
            )


END = (
    tqdm_plain,
    tqdm_named,
    tqdm_slow_start,
    rich_bar,
    pip,
    wget,
    epochs,
    rows,
    percents,
    steps_and_gpu,
    joblib,
    trainer,
    logged,
    pymc,
    pages,
    simulation,
    slowing_items,
    tqdm_nested,
    epochs_and_batches,
    keras,
    keras_two,
    docker,
    ninja,
    pytest_dots,
    gensim,
    dask,
    yolo,
    rsync,
    hf_map,
    batches_of_folds,
)
NONE = (
    tqdm_unknown,
    xgboost,
    lightgbm,
    grid_search,
    dated,
    accuracy_percentage,
    memory,
    bar_then_silence,
    prose_fraction,
    optuna,
    catboost,
    crawler,
    speech,
)
RESETS = (tqdm_rounds, lightning, downloads, stan, fastai, mnist)
