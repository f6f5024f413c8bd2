"""The page of a run, in a real browser."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import polars as pl
import pytest
from hostile import HOSTILE

import agentrl_core as arl
from agentrl_core import scan
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.view import Page
from agentrl_core.view.iteration_statistics import statistics

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"

BLUE, ORANGE = (2, 0), (0, 2)
"""Indices of the stronger and the weaker channel."""


@pytest.fixture
def at(browser, page_file):
    """Open the page at a place; no action on it may cause an error."""

    def go(fragment: str = ""):
        browser.open(page_file, fragment)
        return browser

    yield go
    assert browser.errors == []


def middle(browser, selector: str) -> tuple[float, float]:
    box = browser.do(
        f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
        " found.scrollIntoView({block: 'center'});"
        " const box = found.getBoundingClientRect(); return [box.x + 2, box.y + 2, box.width, box.height]; })()"
    )
    assert box[2] > 0
    assert box[3] > 0
    return box[0], box[1]


def advantages(recorded) -> pl.DataFrame:
    run = scan(recorded)
    return run.draws.agentrl.tokens(run).collect()


def test_it_is_one_file_that_needs_nothing(page_file) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert re.search(r"default-src 'none'; script-src 'sha256-[\w+/=]+'; style-src 'sha256-[\w+/=]+'", text)
    assert "unsafe" not in text.partition("</head>")[0].partition("<style>")[0]
    assert not re.findall(r"<(?:link|img|iframe|script)\b[^>]*(?:src|href)=", text)
    assert page_file.stat().st_size < 400_000


def test_curves_are_those_of_the_run(at, recorded) -> None:
    browser = at()
    numbers = statistics(scan(recorded))
    cards = dict(zip(browser.texts(".curve h3"), browser.texts(".curve output"), strict=True))
    cards |= {text.split(" ", 1)[1]: text.split()[0] for text in browser.texts(".constant span")}
    assert {"success", "reward", "same reward", "entropy", "tool errors", "success@lcm"} <= cards.keys()
    for name in ("success", "reward", "entropy", "turns", "staleness"):
        last = numbers[name][-1]
        assert float(cards[name]) == pytest.approx(last, abs=5.1e-4), name
    assert len(browser.texts(".sign")) >= 7
    assert browser.do("document.querySelectorAll('.curve[data-name=success] .dot').length") == 3


def test_curves_stand_in_named_groups(at, recorded) -> None:
    browser = at()
    assert browser.texts(".curve-group > h3") == ["Outcome", "Learning", "Tokens", "Failures"]
    for title, name in (
        ("Outcome", "success"),
        ("Outcome", "success@lcm"),
        ("Learning", "entropy"),
        ("Tokens", "length"),
        ("Failures", "tool errors"),
    ):
        section = f".curve-group[data-name={title}]"
        constant = {text.split(" ", 1)[1] for text in browser.texts(f"{section} .constant span")}
        assert name in {*browser.texts(f"{section} .curve h3"), *constant}, name
    computed = {name for name in statistics(scan(recorded)).columns if "@" not in name} - {"iteration"}
    meanings = browser.do(
        "[...document.querySelectorAll('.curve, .constant [data-name]')].map((each) => [each.dataset.name, each.title])"
    )
    of_numbers = {name: meaning for name, meaning in meanings if name in computed}
    assert {"success", "entropy", "length"} <= of_numbers.keys()
    assert not [name for name, meaning in of_numbers.items() if not meaning or "metric of the training loop" in meaning]
    assert len(set(of_numbers.values())) == len(of_numbers)


def test_metrics_of_training_stand_first_with_their_meaning(browser, trained_file) -> None:
    browser.open(trained_file)
    assert browser.texts(".curve-group > h3") == ["Outcome", "Learning", "Tokens", "Failures"]
    learning = browser.texts(".curve-group[data-name=Learning] .curve h3")
    assert learning[:4] == ["loss", "gradient norm", "approximate kl", "clip fraction"]
    assert "tokens.generated" in browser.texts(".curve-group[data-name=Tokens] .curve h3")
    assert "collect.failed" in browser.texts(".curve-group[data-name=Failures] .curve h3")
    assert browser.texts("details.curve-group .curve h3") == ["my metric"]
    meanings = browser.do("[...document.querySelectorAll('[data-name=Learning] .curve')].map((each) => each.title)")
    assert len(set(meanings[:4])) == 4
    assert "probability ratio" in meanings[3]
    assert browser.errors == []


def test_numbers_that_never_change_share_a_row(at, recorded) -> None:
    browser = at()
    numbers = scan(recorded).metrics.collect().sort("iteration")
    flat = {
        name[0]: values["value"].to_list()
        for name, values in numbers.group_by("name")
        if values["value"].n_unique() == 1 and len(values) > 1
    }
    assert flat, "the run has a constant number"
    shown = dict(
        browser.do(
            "[...document.querySelectorAll('.constant span')].map((each) => [each.dataset.name, each.textContent])"
        )
    )
    cards = browser.do("[...document.querySelectorAll('.curve')].map((each) => each.dataset.name)")
    for name in flat:
        assert name in shown, name
        assert name not in cards, name


def test_a_point_of_a_curve_leads_to_its_groups(at, recorded) -> None:
    browser = at()
    box = browser.do(
        "(() => { const box = document.querySelector('.curve svg').getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
    browser.until("location.hash === '#i1'")
    browser.until("document.querySelectorAll('.groups tbody tr').length > 0")
    mine = scan(recorded).trajectories.filter(iteration=1).collect()
    assert browser.texts(".groups tbody td.group_id") == [str(group) for group in sorted(set(mine["group_id"]))]
    assert set(browser.texts(".groups tbody td.task_id")) == set(mine["task_id"])


def test_filters_and_bins_choose_groups(at, recorded) -> None:
    browser = at("#all")
    groups = scan(recorded).trajectories.group_by("group_id").agg(pl.col("reward").mean()).collect()
    assert f"{len(groups)} of {len(groups)} groups" in browser.texts(".count")
    counts = browser.do(
        "[...document.querySelectorAll('.histogram[data-name=\"mean reward\"] .bin')]"
        ".map((bin) => Number(bin.title.split(': ').at(-1)))"
    )
    assert sum(counts) == len(groups)
    place = int(np.argmax(counts))
    browser.click(f".histogram[data-name='mean reward'] .bin:nth-child({place + 1})")
    browser.until(f"document.querySelectorAll('.groups tbody tr').length === {counts[place]}")
    assert counts[place] < len(groups)
    browser.click(".histogram[data-name='mean reward'] .link")
    browser.until(f"document.querySelectorAll('.groups tbody tr').length === {len(groups)}")
    browser.click(".chip[data-filter=tool_errors]")
    failing = (
        scan(recorded).trajectories.join(scan(recorded).steps, on="trajectory_id").filter(pl.col("flags") & 1 != 0)
    )
    expected = failing.select(pl.col("group_id").n_unique()).collect().item()
    assert expected > 0
    browser.until(f"document.querySelectorAll('.groups tbody tr').length === {expected}")


def test_the_tree_draws_each_node_once_as_wide_as_its_tokens(at, recorded) -> None:
    browser = at("#g0")
    nodes = scan(recorded).nodes.filter(group_id=0).collect()
    drawn = browser.do(
        "[...document.querySelectorAll('.tree .node')]"
        ".map((node) => [Number(node.dataset.node), node.getBoundingClientRect().width])"
    )
    paths = scan(recorded).trajectories.filter(group_id=0).agentrl.paths(scan(recorded)).collect()
    different = paths.unique(["tokens", "reward"])
    assert {node for node, _ in drawn} <= set(nodes["node_id"])
    assert len(drawn) == len({node for node, _ in drawn})
    tokens = dict(zip(nodes["node_id"], nodes["tokens"].list.len(), strict=True))
    widths = np.array([width / tokens[node] for node, width in drawn])
    assert widths.max() / widths.min() < 1.05, "a token is as wide everywhere"
    leaves = browser.do(
        "[...document.querySelectorAll('.leaf')]"
        ".map((leaf) => [Number(leaf.dataset.trajectory), Number(leaf.dataset.members)])"
    )
    assert {trajectory for trajectory, _ in leaves} <= set(paths["trajectory_id"])
    assert sum(members for _, members in leaves) == len(paths)
    assert len(different) <= len(leaves) <= len(paths), "siblings that went on alike are one, others are not"


def test_members_with_equal_paths_and_rewards_are_one_line(browser, alike_file) -> None:
    browser.open(alike_file, "#g0")
    assert [text.split("reward")[0].split() for text in browser.texts(".leaf")] == [
        ["✓", "0", f"{TIMES}3"],
        ["✗", "2"],
        ["✓", "4"],
    ]
    # The prompt, the two answers and the observation of the three, the same answers without a reward, the fifth's own
    # answer.
    assert browser.do("document.querySelectorAll('.tree .node').length") == 1 + 3 + 3 + 1
    for following in (1, 3, 0):
        browser.click(".leaf")
        browser.until(f"document.querySelector('.leaf.chosen').dataset.trajectory === '{following}'")
    assert browser.do("document.querySelectorAll('.tree .node.on').length") == 4
    assert browser.errors == []


def test_signs_of_health(browser, drifted_file) -> None:
    browser.open(drifted_file)
    signs = dict(zip(browser.texts(".sign span"), browser.texts(".sign b"), strict=True))
    # Behaviour log-probs and recomputed ones are (-0.5, -0.1, -0.2, -0.3, -0.1, -1, -2) and -0.25 for each.
    assert signs["effective samples"] == effective([-0.5, -0.1, -0.2, -0.3, -0.1, -1.0, -2.0], -0.25)
    # Paths of 7 and 5 tokens, in a batch padded to 7: 1 - 6 / 7.
    assert signs["padding"] == "14%"
    assert signs["not finite"] == "1"


def effective(sampled: list[float], again: float) -> str:
    weights = [math.exp(again - each) for each in sampled]
    return f"{sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights)):.0%}"


@pytest.mark.parametrize(("sign", "channels"), [(1, BLUE), (-1, ORANGE)])
def test_advantages_are_blue_above_the_baseline_and_orange_below(at, recorded, sign, channels) -> None:
    row = advantages(recorded).filter(pl.col("iteration") == 0, pl.col("advantage") * sign > 0).row(0, named=True)
    browser = at(f"#g{row['group_id']}/t{row['trajectory_id']}")
    strong, weak = channels
    node = browser.colour(*middle(browser, f".tree .node[data-node='{row['node_id']}']"))
    assert node[strong] > node[weak] + 30, node
    token = browser.colour(*middle(browser, f"[data-place='{row['token_position']}']"))
    assert token[strong] > token[weak] + 30, token
    prompt = browser.colour(*middle(browser, "[data-place='0']"))
    assert max(prompt) - min(prompt) < 12, "a prompt has no advantage, and no colour"


def test_the_text_is_that_of_the_tokenizer(at, recorded) -> None:
    from tokenizers import Tokenizer

    run = scan(recorded)
    tokenizer = Tokenizer.from_file(str(recorded / "start" / "tokenizer.json"))
    for row in run.trajectories.agentrl.paths(run).collect().gather([0, 20, 60]).rows(named=True):
        browser = at(f"#g{row['group_id']}/t{row['trajectory_id']}")
        pieces = browser.texts(".tokens [data-place]")
        assert len(pieces) == len(row["tokens"])
        assert "".join(pieces).replace("↵", "") == tokenizer.decode(row["tokens"], skip_special_tokens=False)
        assert browser.do("document.querySelectorAll('.tokens .special').length") > 0


def test_overlays_and_facts_of_a_token(at, recorded) -> None:
    row = advantages(recorded).filter(iteration=0).row(0, named=True)
    browser = at(f"#g{row['group_id']}/t{row['trajectory_id']}/k{row['token_position']}")
    names = browser.do("[...document.querySelectorAll('.menu button')].map((button) => button.dataset.overlay)")
    assert {"text", "advantage", "logprobs", "entropies", "mask", "kind", "version", "value"} <= set(names)
    facts = dict(zip(browser.texts(".facts-of-token dt"), browser.texts(".facts-of-token dd"), strict=True))
    assert facts["token"] == str(row["token"])
    assert float(facts["advantage"].replace(MINUS, "-")) == pytest.approx(row["advantage"], abs=5.1e-4)
    assert float(facts["log-prob"].split()[0].replace(MINUS, "-")) == pytest.approx(row["logprob"], abs=2e-3)
    assert facts["trained"] == "yes"
    browser.click(".menu [data-overlay=mask]")
    trained = browser.colour(*middle(browser, f"[data-place='{row['token_position']}']"))
    other = browser.colour(*middle(browser, "[data-place='0']"))
    assert trained[2] > trained[0] + 20 > other[0] - 200
    assert abs(other[2] - other[0]) < 15
    assert browser.texts(".legend .key") == ["not trained", "trained"]


def test_an_advantage_is_explained_by_its_formula_and_recipe(at, recorded) -> None:
    draws = scan(recorded).draws.agentrl.computed(scan(recorded)).filter(iteration=2).collect()
    row = draws.row(0, named=True)
    mine = draws.filter(group_id=row["group_id"])
    browser = at(f"#g{row['group_id']}/t{row['trajectory_id']}")
    assert len(browser.texts(".why tbody tr")) == len(mine)
    (formula,) = browser.texts(".formula")
    deviation = (row["score"] - mine["score"].mean()) / (mine["score"].std() + 1e-6)
    assert deviation == pytest.approx(row["advantage"], abs=1e-5)
    assert f"{abs(deviation):.3f}" in formula
    assert "✓ as stored" in formula
    assert "Recipe grpo" in "".join(browser.texts(".why summary"))
    assert "GroupRelative" in browser.texts(".why .link b")


def test_members_stand_side_by_side_from_where_they_part(at, recorded) -> None:
    run = scan(recorded)
    paths = run.trajectories.filter(group_id=0).agentrl.paths(run).collect()
    one, other = paths["tokens"][0].to_list(), paths["tokens"][3].to_list()
    first, second = paths["trajectory_id"][0], paths["trajectory_id"][3]
    same = next(place for place, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    browser = at(f"#g0/t{first}/side/o{second}")
    assert f"the first {same} tokens are the same" in browser.texts(".count")
    assert browser.texts(".side header b") == [f"Rollout {first}", f"Rollout {second}"]


def test_the_slider_replays_the_growth_of_the_tree(at) -> None:
    browser = at("#g0")
    count = browser.do("document.querySelectorAll('.tree .node').length")
    assert count > 5
    assert browser.do("document.querySelectorAll('.node.unborn').length") == 0
    browser.do(
        "(() => { const slider = document.querySelector('input[type=range]'); slider.value = 5;"
        " slider.dispatchEvent(new Event('input')); })()"
    )
    assert browser.do("document.querySelectorAll('.node.unborn').length") == count - 5
    assert browser.texts(".replay output")[0].startswith(f"5 of {count} nodes")


def test_keys_move_through_the_run(at, recorded) -> None:
    ids = scan(recorded).trajectories.filter(group_id=0).sort("trajectory_id").collect()["trajectory_id"].to_list()
    browser = at("#g0")
    browser.press("]")
    browser.until(f"location.hash === '#g0/t{ids[1]}'")
    browser.until(f"document.querySelector('.leaf.chosen').dataset.trajectory === '{ids[1]}'")
    browser.press("[")
    browser.until(f"location.hash === '#g0/t{ids[0]}'")
    browser.until(f"document.querySelector('.leaf.chosen').dataset.trajectory === '{ids[0]}'")
    before = browser.texts(".menu [aria-pressed=true]")
    browser.press("o")
    assert browser.texts(".menu [aria-pressed=true]") != before
    browser.press("s")
    browser.until("document.querySelectorAll('.side').length === 2")
    browser.press("}")
    browser.until("location.hash === '#g1'")
    browser.until("document.querySelector('h2').textContent.startsWith('Group 1')")
    browser.press("g")
    browser.until("location.hash === '#i0'")
    browser.until("document.querySelector('.groups')")
    browser.press("g")
    browser.until("location.hash === '' && document.querySelector('.overview')")
    browser.press("?")
    assert browser.do("document.querySelector('.help').open")


def test_search_finds_texts_and_tasks_and_leads_there(at, recorded) -> None:
    browser = at()
    browser.until("document.getElementById('page').dataset.indexed")
    browser.press("/")
    browser.write("syntax error")
    browser.until("document.querySelectorAll('.found li').length > 1")
    run = scan(recorded)
    from agentrl_core.integrations.polars.vocabulary import Vocabulary

    nodes = run.nodes.collect()
    texts = Vocabulary.find(recorded).texts(nodes["tokens"])
    count = int(texts.str.contains("syntax error", literal=True).sum())
    assert count > 0
    assert browser.texts(".found .count") == [f"{count} places in texts"]
    assert set(browser.texts(".found mark")) == {"syntax error"}
    browser.press("Enter")
    browser.until("location.hash.includes('/k')")
    browser.until("document.querySelector('.tokens .chosen')")
    assert "syntax" in browser.texts(".part:has(.chosen) p")[0]
    browser.press("/")
    browser.do("document.querySelector('.search input').value = ''")
    browser.write("chain_sum")
    browser.until("[...document.querySelectorAll('.found li')].some((each) => each.textContent.includes('chain_sum/'))")


def test_hostile_text_stays_text(browser, hostile_file) -> None:
    for fragment in ("", "#i0", "#g0", "#g0/t0/side", "#g0/t0/k2"):
        browser.open(hostile_file, fragment)
        assert "owned" not in browser.do("document.title").replace(HOSTILE[0], "")
        assert browser.do("document.querySelectorAll('#page b b, #page img, #page script').length") == 0
        assert browser.errors == []
    texts = browser.texts(".part.prompt [data-place]")
    assert texts[0] == HOSTILE[0]
    assert texts[1] == HOSTILE[1]
    assert texts[2] == "␛[31mred␇"
    assert texts[3] == "⟨U+202E⟩txet neddih⟨U+202C⟩"
    assert texts[4:7] == [HOSTILE[4], HOSTILE[5], HOSTILE[6]]
    assert texts[7] == "⟨U+200B⟩invisible⟨U+2066⟩"
    assert browser.texts("h2 .task") == [HOSTILE[0]]
    bidi_values = browser.do(
        "[...document.querySelectorAll('.part.prompt [data-place]')].map((each) => getComputedStyle(each).unicodeBidi)"
    )
    assert set(bidi_values) == {"isolate"}
    browser.until("document.getElementById('page').dataset.indexed")
    browser.press("/")
    browser.write("onerror")
    browser.until("document.querySelectorAll('.found mark').length > 0")
    assert browser.do("document.querySelectorAll('#page img').length") == 0


def test_nothing_but_the_script_of_the_page_runs(browser, page_file) -> None:
    browser.open(page_file)
    refused = browser.do(
        "(() => { try { return new Function('return 1')(); } catch (error) { return error.name; } })()"
    )
    assert refused == "EvalError"
    browser.do(
        "document.body.append(Object.assign(document.createElement('script'),"
        " { textContent: 'document.title = \"owned\"' }))"
    )
    assert browser.do("document.title") != "owned"
    answer = browser.do("fetch('https://example.com').then(() => 'answered', () => 'refused')")
    assert answer == "refused"
    assert any("Content Security Policy" in error for error in browser.errors)


def test_night_and_day(at) -> None:
    browser = at("#g0")
    browser.press("n")
    first = browser.colour(4, 400)
    browser.press("n")
    second = browser.colour(4, 400)
    assert sorted([sum(first) < 150, sum(second) > 650]) == [True, True] or sorted(
        [sum(second) < 150, sum(first) > 650]
    ) == [True, True]


def test_tokens_over_the_limit_are_left_out_with_a_note(browser, recorded, tmp_path) -> None:
    with arl.Store.open(recorded, read_only=True) as store:
        tokens = pl.DataFrame(store.nodes).group_by("group_id").agg(pl.col("tokens").list.len().sum())
        token_count = int(tokens["tokens"].sum())
        page = Page.of(store, tokens=token_count // 3).save(tmp_path / "part.html")
        late = Page.of(store, iterations=(2, 3)).save(tmp_path / "late.html")
        with pytest.raises(InvalidInputError, match="tokens=0"):
            Page.of(store, tokens=0)
    browser.open(page)
    (note,) = browser.texts(".note")
    missing = int(re.search(r"The tokens of (\d+) groups are not in this page", note)[1])
    assert 0 < missing < len(tokens)
    browser.go("#g0")
    assert "are not in this page" in browser.texts(".note")[0]
    browser.open(late, "#all")
    assert browser.do("document.querySelectorAll('.groups tr.away').length") == 6
    assert browser.errors == []


def test_a_run_without_tokenizer_shows_ids(browser, tmp_path) -> None:
    from stores import trained

    with arl.Store.open(tmp_path / "run") as store:
        batch = trained(store, 0)
        page = Page.of(store).save(tmp_path / "ids.html")
    browser.open(page, "#g0")
    first = pl.DataFrame(batch.nodes).filter(group_id=0)["tokens"][0].to_list()
    assert [int(text) for text in browser.texts(".tokens [data-place]")[: len(first)]] == first
    assert "tokens are shown as ids" in browser.texts(".bottom")[0]
    assert browser.errors == []


def test_a_notebook_shows_it_in_a_frame(recorded) -> None:
    with arl.Store.open(recorded, read_only=True) as store:
        page = Page.of(store, title="mine")
    markup = page._repr_html_()
    assert markup.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert '"' not in markup.partition('srcdoc="')[2].partition('" style=')[0]
    assert "<title>mine</title>" in page.html


def test_drift_shows_both_texts_from_the_first_token_that_differs(browser, drifted_file) -> None:
    browser.open(drifted_file, "#g0/t0/drift")
    assert browser.texts(".drift header b")[0] == "Turn 1"
    assert browser.texts(".drift header em")[0] == "realigned"
    # sampled: 1 2 3 4 9; in the next prompt: 1 2 3 4 5; number 4 is the first that differs
    assert "number 4" in browser.texts(".drift header span")[0]
    pairs = [text.split() for text in browser.texts(".drift:first-child .pair p")]
    assert pairs == [["1", "2", "3", "4", "9"], ["1", "2", "3", "4", "5", "6", "9"]]
    assert [text.strip() for text in browser.texts(".drift:first-child .first")] == ["9", "5"]
    browser.open(drifted_file, "#g0/t0")
    assert browser.texts(".contexts button") == ["context 1", "last context"]
    assert "realigned" in browser.texts(".part header em")
    browser.click(".contexts button")
    browser.until("location.hash.endsWith('/c0')")
    tokens = "[...document.querySelectorAll('.tokens [data-place]')].map((each) => each.textContent.trim())"
    browser.until(f"{tokens}.join() === '1,2,3,4,9'")
    browser.go("#g0/t1/drift")
    assert "Not looked at" in browser.texts(".missing")[0]
    assert browser.errors == []


def test_agents_have_lanes_and_log_probs_a_mismatch(browser, drifted_file) -> None:
    browser.open(drifted_file, "#g0/t1/k3")
    assert [text for text in browser.texts(".agents div") if text] == ["agent 0", "agent 1"]
    facts = dict(zip(browser.texts(".facts-of-token dt"), browser.texts(".facts-of-token dd"), strict=True))
    # -0.25 of the reference minus -1.0 as it was sampled
    assert facts["mismatch"] == "0.750"
    assert "mismatch" in browser.do(
        "[...document.querySelectorAll('.menu button')].map((each) => each.dataset.overlay)"
    )
    assert browser.errors == []


def test_a_selection_is_exported_with_texts_and_tokens(at, recorded) -> None:
    browser = at("#i0")
    browser.do("URL.createObjectURL = (blob) => { globalThis.saved = blob; return 'blob:none'; }; null")
    browser.do("HTMLAnchorElement.prototype.click = () => {}; null")
    browser.do(
        "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Export selection').click()"
    )
    browser.until("globalThis.saved")
    groups = json.loads(browser.do("saved.text()"))
    run = scan(recorded)
    assert [group["group_id"] for group in groups] == [0, 1, 2]
    paths = run.trajectories.filter(group_id=1).agentrl.paths(run).agentrl.text(recorded).collect()
    for member, row in zip(groups[1]["members"], paths.rows(named=True), strict=True):
        (context,) = member["contexts"]
        assert (member["trajectory_id"], member["reward"]) == (row["trajectory_id"], row["reward"])
        assert (context["tokens"], context["text"]) == (row["tokens"], row["text"])


def test_print_shows_the_content_without_the_controls(at) -> None:
    browser = at("#g0")
    count_visible = "[...document.querySelectorAll('{}')].filter((each) => each.getClientRects().length > 0).length"
    assert browser.do(count_visible.format(".replay")) == 1
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.do(count_visible.format(".replay, .tabs, .menu, .top")) == 0
    assert browser.do(count_visible.format(".part")) > 2
    assert browser.do(count_visible.format(".tree")) == 1
    browser.call("Emulation.setEmulatedMedia", media="")
