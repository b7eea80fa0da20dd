"""Promise 13: a server under attack answers every honest client, and stays as it was."""

import asyncio
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from tests.faults import hostile_clients
from tests.faults.hostile_clients import CLOSED
from tools.bench.serve import Loop, export_model, send_load, source_texts, start_server

EXPERIMENT = "lm.source.tiny(model_dim=32, num_layers=2)"
KEY = "correct-horse"
SECONDS = 300.0
WARM_SECONDS = 60  # after which memory has to stay
MEDIAN_SECONDS = 10  # of memory, which single bodies raise for a moment
CLIENTS = 50
LENGTHS = range(50, 1001, 50)  # of texts, in bytes, which give each a score far from all others


def test_five_minutes_of_attacks_lose_no_answer_and_leave_the_server_as_it_was(tmp_path):
    model = export_model(tmp_path, EXPERIMENT, steps=2)
    (tmp_path / "key.txt").write_text(KEY)
    whole = "".join(itertools.islice(source_texts(), 4))
    loop = Loop(model)
    expected = {whole[:length]: loop.score(whole[:length]) for length in LENGTHS}
    spawn = multiprocessing.get_context("spawn")
    with (
        open(tmp_path / "errors.txt", "w+") as errors,
        ProcessPoolExecutor(2, mp_context=spawn) as others,
        start_server(
            model, f"--api_key_file={tmp_path / 'key.txt'}", key=KEY, errors=errors
        ) as server,
    ):
        attacks = others.submit(hostile_clients.attack, model.name, KEY, server.port, SECONDS)
        probes = others.submit(hostile_clients.probe, server.port, SECONDS)
        load = asyncio.run(send_load(server, expected, num_clients=CLIENTS, seconds=SECONDS))
        counts, health = attacks.result(), probes.result()
    said = (tmp_path / "errors.txt").read_text()
    warm = load.megabytes[WARM_SECONDS:]
    first, last = (np.median(part) for part in (warm[:MEDIAN_SECONDS], warm[-MEDIAN_SECONDS:]))

    print(f"{len(load.latencies)} answers", np.percentile(load.latencies, [50, 99, 100]), "s")
    print(f"{len(health)} probes", np.percentile(health, [50, 99, 100]), "s")
    most = max(load.megabytes)
    print(f"{first:.0f} MB after {WARM_SECONDS} s, {last:.0f} at the end, {most:.0f} at most")
    print(*(f"{name}: {dict(ends)}" for name, ends in counts.items()), said, sep="\n")

    assert (load.num_lost, load.num_mixed) == (0, 0)
    wanted = {name: one.end for name, one in hostile_clients.make_attacks("", KEY).items()}
    assert {name: set(ends) - {CLOSED} for name, ends in counts.items()} == {
        name: {end} - {CLOSED} for name, end in wanted.items()
    }
    assert np.percentile(health, 99) <= 1.0
    assert max(health) <= 3.0
    assert last <= 1.1 * first
    assert said == "lingo: stopped by SIGTERM; nothing had to be saved\n"
