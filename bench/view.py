"""The page of a run of a million tokens in Chromium, beside Inspect's viewer on the same transcripts.

    python bench/view.py [--iterations 24] [--keep FOLDER] [--pictures docs/images] [--inspect PYTHON]

The bench measures the page's size in MB, the time from navigation to the first view with its numbers, the time to open
a group, and that of a search over all loaded texts (the slowest of eight). Texts of a few sentences compress well, so a
page of random tokens, which are incompressible, is measured too. Inspect reads the transcripts as messages: it shows no
token numbers. `--inspect` names a Python with inspect-ai, which needs other package versions than this project.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
from common import Bench

import agentrl_core as arl
from agentrl_core import recipes, scan
from agentrl_core.integrations.polars.vocabulary import Vocabulary
from agentrl_core.view import Page

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from browser import Browser

GROUPS, MEMBERS = 8, 8
SOUGHT = ("Lisbon", "commission wrote", "the index did not answer", "voyager", "tenth", "e", "zebra", "<answer>42")
MEGABYTES, PAINTED, FOUND = 12.0, 1000.0, 100.0
"""Targets for a page of a million tokens: milliseconds to the first view, and of a search."""

SUBJECTS = """the Hanseatic League, the Antikythera mechanism, basalt columns, the Voyager probes, bowhead whales,
the Suez Canal, slime moulds, the Carrington event, Byzantine mosaics, tardigrades, the Silk Road, the Lascaux caves,
ball lightning, the Hubble constant, the Domesday Book, deep-sea vents"""
ASPECTS = """when it was first described, who paid for it, how its age was measured, what ended it, where records are,
which numbers disagree, how large it was at its height, what the newest survey says"""
OPENINGS = [
    "Let me look for",
    "I should check",
    "The question asks about",
    "First I need",
    "It would help to know",
    "I am not sure about",
]
FACTS = [
    "A survey of {year} counted {count} of them, more than anybody had expected.",
    "The archive in Lisbon keeps {count} letters about {subject}, most of them unread.",
    "Later measurements put {subject} at {count} years, with an error of a tenth.",
    "In {year} a commission wrote that {subject} had been described wrongly for decades.",
    "The oldest source is from {year}; a copy of it names {count} witnesses.",
    "Two teams disagree: one says {count}, the other says {year} was the turning point.",
]


def listed(text: str) -> list[str]:
    """Parts of sentences, joined by commas."""
    return " ".join(text.split()).split(", ")


class Writer:
    """Transcripts of a search agent: realistic texts, and realistic numbers of tokens."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.subjects, self.aspects = listed(SUBJECTS), listed(ASPECTS)

    def pick(self, choices: list[str]) -> str:
        """Return one of some texts."""
        return choices[int(self.rng.integers(len(choices)))]

    def facts(self, subject: str, count: int) -> str:
        """Return *n* sentences about a subject."""
        numbers = {"year": int(self.rng.integers(1400, 2020)), "count": int(self.rng.integers(20, 900))}
        return " ".join(self.pick(FACTS).format(subject=subject, **numbers) for _ in range(count))

    def thought(self, subject: str) -> str:
        """Return the agent's thoughts before it acts."""
        return (
            f"<think>{self.pick(OPENINGS)} {subject}, and {self.pick(self.aspects)}. {self.facts(subject, 1)}</think>\n"
        )

    def call(self, subject: str) -> str:
        """Return a search."""
        return self.thought(subject) + f"<search>{subject}: {self.pick(self.aspects)}</search><|end|>"

    def result(self, subject: str) -> str:
        """Return the result of a search."""
        return "\n".join(f"[{place + 1}] {self.facts(subject, 3)}" for place in range(3)) + "<|end|>"

    def answer(self, subject: str, value: int) -> str:
        """Return the last turn."""
        return self.thought(subject) + f"<answer>{value}</answer><|end|>"


def tokenizer_of(texts: list[str]) -> Any:
    """Return a byte-level tokenizer of some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    )
    return tokenizer


def record(folder: Path, iterations: int) -> None:
    """Record a run of GRPO whose rollouts branch after their first search."""
    writer, rng = Writer(0), np.random.default_rng(1)
    tokenizer = tokenizer_of([writer.call(name) + writer.result(name) for name in writer.subjects for _ in range(30)])
    with arl.Store.open(folder) as store:
        (folder / "start").mkdir()
        tokenizer.save(str(folder / "start" / "tokenizer.json"))
        for iteration in range(iterations):
            forest = arl.Forest(iteration=iteration)
            for group in range(GROUPS):
                _group(forest, writer, tokenizer, rng, iteration, iterations, group)
            batch = store.rebase(forest.freeze())
            store.append(batch, iteration=iteration)
            batch = recipes.GRPO.credit(batch.with_columns("draw", score=batch.column("reward", "draw")))
            metrics = {
                "loss": 0.02 - 0.001 * iteration + 0.004 * rng.standard_normal(),
                "gradient_norm": 0.4 + 0.2 * rng.random(),
                "approximate_kl": 0.002 * iteration + 0.001 * rng.random(),
                "clip_fraction": 0.02 + 0.002 * iteration + 0.01 * rng.random(),
            }
            state = {"metrics": metrics, "run": {"recipe": recipes.GRPO.to_dict(), "seed": 0}}
            store.close_iteration(batch, state)


def _group(forest: Any, writer: Writer, tokenizer: Any, rng: Any, iteration: int, iterations: int, group: int) -> None:
    subject = writer.pick(writer.subjects)
    forest.add_group(group, f"research/{subject.replace(' ', '-').lower()}")
    prompt = (
        f"<|user|>Find out about {subject}: {writer.pick(writer.aspects)}. Answer with one number.<|end|><|assistant|>"
    )
    hard = float(np.clip(0.2 + 0.6 * iteration / iterations + 0.25 * rng.standard_normal(), 0.02, 0.97))
    calm = 1.0 - 0.45 * iteration / iterations

    def say(path: int, text: str, kind: str, **more: Any) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if kind == "action":
            entropies = calm * rng.gamma(0.35, 0.9, len(ids))
            more |= {
                "logprobs": (-entropies * rng.exponential(0.8, len(ids))).tolist(),
                "entropies": entropies.tolist(),
            }
            more |= {"policy_version": max(0, iteration - int(rng.integers(0, 2)))}
        forest.append(path, ids, kind=kind, **more)

    def turns(path: int, count: int) -> None:
        for _ in range(count):
            say(path, writer.call(subject), "action")
            failed = rng.random() < 0.06
            forest.step(path, flags=5 if failed else 4)
            answer = "error: the index did not answer<|end|>" if failed else writer.result(subject)
            say(path, f"<|tool|>{answer}<|assistant|>", "observation", state=answer)

    def end(path: int) -> None:
        solved = rng.random() < hard
        say(path, writer.answer(subject, 42 if solved else int(rng.integers(20, 900))), "action")
        forest.step(path)
        forest.finish(path, reward=float(solved), success=bool(solved))

    for member in range(MEMBERS // 2):
        trunk = forest.start(group, member)
        say(trunk, prompt, "prompt")
        turns(trunk, int(rng.integers(1, 3)))
        branch = forest.fork(trunk)
        for path in (trunk, branch):
            turns(path, int(rng.integers(1, 4)))
            end(path)


def measure(bench: Bench, run: Path, page: Path, pictures: Path | None) -> None:
    """Render the page, open it, open a group, and search."""
    began = time.perf_counter()
    with arl.Store.open(run, read_only=True) as store:
        Page.of(store, title="search-agent").save(page)
    making_seconds = time.perf_counter() - began
    tokens = scan(run).nodes.select(pl.col("tokens").list.len().sum()).collect().item()
    nodes = scan(run).nodes.select(pl.len()).collect().item()
    group = _mixed(run)
    with Browser(1440, 900) as browser:
        browser.open(page)
        painted = [_painted(browser, page) for _ in range(3)]
        browser.until("document.getElementById('page').dataset.indexed")
        indexed = float(browser.do("document.getElementById('page').dataset.indexed"))
        seconds = [_searched(browser, text) for text in SOUGHT]
        group_ms = _opened(browser, group)
        if pictures is not None:
            _pictures(browser, page, pictures, group)
        assert browser.errors == []
    megabytes = page.stat().st_size / 1e6
    per_million = megabytes / tokens * 1e6
    figures = {
        "tokens": tokens,
        "nodes": nodes,
        "made_s": making_seconds,
        "mb": megabytes,
        "mb_per_million_tokens": per_million,
        "painted_ms": min(painted),
        "read_ms": indexed,
        "group_ms": group_ms,
        "search_ms": statistics.median(seconds),
        "slowest_search_ms": max(seconds),
    }
    figures["mb_per_million_random_tokens"] = random_megabytes()
    bench.lines.append({"work": "page", **figures})
    for name, value, goal in (
        ("mb_per_million_tokens", per_million, MEGABYTES),
        ("mb_per_million_random_tokens", figures["mb_per_million_random_tokens"], MEGABYTES),
        ("painted_ms", min(painted), PAINTED),
        ("slowest_search_ms", max(seconds), FOUND),
    ):
        print(f"{name:<30} {value:10.1f}  (goal {goal:g}: {'reached' if value <= goal else 'missed'})")
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


def _searched(browser: Browser, text: str) -> float:
    """Return the milliseconds of a search, as shown by the search box."""
    box = "document.querySelector('.search input')"
    browser.do(f"{box}.focus()")
    browser.do(f"{box}.value = {json.dumps(text)}")
    browser.do(f"{box}.dispatchEvent(new Event('input')) && null")
    return float(browser.do(f"{box}.dataset.milliseconds"))


def random_megabytes() -> float:
    """Measure an incompressible page of a million tokens: random ids of a large vocabulary, all with numbers."""
    rng = np.random.default_rng(0)
    forest = arl.Forest()
    for group in range(16):
        forest.add_group(group, f"task {group}")
        for member in range(8):
            path = forest.start(group, member)
            forest.append(path, rng.integers(0, 150_000, 64, np.int32), kind="prompt")
            count = 1500
            numbers = {name: rng.standard_exponential(count, np.float32) for name in ("logprobs", "entropies")}
            numbers["logprobs"] *= -1
            forest.append(path, rng.integers(0, 150_000, count, np.int32), kind="action", **numbers)
            forest.step(path)
            forest.finish(path, reward=float(member % 2))
    with tempfile.TemporaryDirectory() as folder, arl.Store.open(folder) as store:
        batch = store.rebase(forest.freeze())
        store.append(batch, iteration=0)
        store.close_iteration(batch.with_columns("draw", advantage=np.ones(batch.num_draws)), {})
        tokens = scan(store).nodes.select(pl.col("tokens").list.len().sum()).collect().item()
        return len(Page.of(store).html) / tokens


def _mixed(run: Path) -> int:
    """Return a late group whose members have different rewards."""
    spread = scan(run).trajectories.group_by("group_id").agg((pl.col("reward").mean() - 0.5).abs().alias("far"))
    return int(spread.sort("far", "group_id", descending=[False, True]).collect()["group_id"][0])


def _painted(browser: Browser, page: Path) -> float:
    browser.open(page)
    browser.until("performance.getEntriesByName('first-contentful-paint').length")
    painted = browser.do("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return max(painted, float(browser.do("document.getElementById('page').dataset.painted")))


def _opened(browser: Browser, group: int) -> float:
    """Return the milliseconds from the click to the tree and the text."""
    before = browser.do("performance.now()")
    browser.go(f"#g{group}")
    return float(browser.do("document.getElementById('page').dataset.painted")) - before


def _pictures(browser: Browser, page: Path, folder: Path, group: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in (("run", "#"), ("group", f"#g{group}")):
        browser.open(page, place)
        time.sleep(0.3)
        (folder / f"page-{name}.png").write_bytes(browser.picture())


INSPECT = """
import json, sys
from datetime import datetime, timezone
from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, bundle_log_dir, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score
kinds = {"prompt": ChatMessageUser, "action": ChatMessageAssistant, "observation": ChatMessageTool}
samples = []
for line in open(sys.argv[1]):
    row = json.loads(line)
    messages = [kinds[kind](content=text) for kind, text in row["messages"]]
    output = ModelOutput.from_content("policy", row["messages"][-1][1])
    scores = {"reward": TaskScore(value=row["reward"])}
    asked = row["messages"][0][1]
    samples.append(
        EvalSample(id=row["id"], epoch=1, input=asked, target="42", messages=messages, output=output, scores=scores)
    )
created = datetime.now(timezone.utc).isoformat()
dataset = EvalDataset(name="research", samples=len(samples))
spec = EvalSpec(created=created, task="research", dataset=dataset, model="policy", config=EvalConfig())
write_eval_log(EvalLog(status="success", eval=spec, samples=samples), sys.argv[2] + "/run.eval")
bundle_log_dir(log_dir=sys.argv[2], output_dir=sys.argv[3])
"""


def beside_inspect(bench: Bench, run: Path, folder: Path, python: str) -> None:
    """Measure Inspect's own static bundle of the same transcripts, from a local server, which it needs."""
    nodes = scan(run).trajectories.select("trajectory_id", "reward").agentrl.nodes(run).collect()
    texts = Vocabulary.find(run)
    assert texts is not None
    nodes = nodes.with_columns(text=texts.texts(nodes["tokens"]))
    rows = nodes.group_by("trajectory_id", maintain_order=True).agg("kind", "text", pl.col("reward").first())
    with (folder / "transcripts.jsonl").open("w") as file:
        for row in rows.rows(named=True):
            messages = list(zip(row["kind"], row["text"], strict=True))
            file.write(json.dumps({"id": row["trajectory_id"], "messages": messages, "reward": row["reward"]}) + "\n")
    logs, site = folder / "logs", folder / "site"
    logs.mkdir()
    command = [python, "-c", INSPECT, str(folder / "transcripts.jsonl"), str(logs), str(site)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if completed.returncode:
        bench.skipped("inspect", completed.stderr.strip().splitlines()[-1])
        return
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    try:
        with Browser(1440, 900) as browser:
            url = f"http://127.0.0.1:{server.server_port}/"
            times = []
            for _ in range(4):
                browser.call("Page.navigate", url="about:blank")
                browser.call("Page.navigate", url=url)
                # The list of samples, or of logs if it shows that first.
                browser.until("/research|run\\.eval/.test(document.body?.innerText ?? '')")
                times.append(float(browser.do("performance.now()")))
    finally:
        server.shutdown()
    bench.lines.append({"work": "inspect", "mb": size, "painted_ms": min(times[1:])})
    print(f"inspect: {size:.1f} MB with its program, list painted after {min(times[1:]):.0f} ms (from a server)")


def main() -> None:
    """Measure and write the record."""
    options = argparse.ArgumentParser()
    options.add_argument("--iterations", type=int, default=24)
    options.add_argument("--keep", type=Path)
    options.add_argument("--pictures", type=Path)
    options.add_argument("--inspect")
    arguments = options.parse_args()
    bench = Bench("view")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        run = folder / "search-agent"
        if not run.exists():
            run.mkdir(parents=True)
            record(run, arguments.iterations)
        measure(bench, run, folder / "run.html", arguments.pictures)
        if arguments.inspect:
            beside_inspect(bench, run, Path(scratch), arguments.inspect)
        else:
            bench.skipped("inspect", "no Python with inspect-ai was named")
    bench.write()


if __name__ == "__main__":
    main()
