"""The collector over a real environment and a real model."""

import itertools

import numpy as np
import polars as pl
import pytest

import agentrl_core as arl
from agentrl_core import advantage, annotate, engine, recipes, reward, rollout, select
from agentrl_core.collect import Evaluation, Progress, evaluate
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError, RecipeError
from agentrl_core.model.token_probe import Probe
from agentrl_core.recipes.igpo import InformationGain

LIMITS = {"sampling": engine.Sampling(max_tokens=24), "context_tokens": 160, "task_pool": 64}


def facts(batch):
    """Return the tables without timestamps."""
    tables = [batch.nodes, batch.steps, batch.trajectories, batch.draws]
    return [pl.DataFrame(table).drop("created_us", strict=False) for table in tables]


def same(first, second):
    return all(a.equals(b, null_equal=True) for a, b in zip(facts(first), facts(second), strict=True))


def test_a_batch_depends_on_the_seed_alone(world, warm_policy):
    policy, tokenizer = warm_policy
    batches = []
    for seed in (3, 3, 4):
        # Without batch_invariant the last bits depend on the other rows of a batch.
        generate = engine.Transformers(policy, tokenizer, batch_invariant=True)
        collect = arl.Collector(generate, world, recipes.GRPO, seed=seed, **LIMITS)
        batches.append(collect(tasks=3, group_size=4))
    assert same(batches[0], batches[1])
    assert not same(batches[0], batches[2])


def test_every_sampled_token_is_stored_with_its_log_prob_and_version(world, warm_policy, tmp_path):
    policy, tokenizer = warm_policy
    generate = engine.Transformers(policy, tokenizer)
    sampled = []

    class Counting:
        """The real engine; records its results."""

        def __getattr__(self, name):
            return getattr(generate, name)

        async def generate(self, request):
            segment = await generate.generate(request)
            sampled.append(segment)
            return segment

    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(Counting(), world, recipes.ARPO, store=store, **LIMITS)
        for version in range(2):
            generate.update_weights(policy, version=version)
            batch = recipes.ARPO.credit(collect(tasks=2, group_size=8))
            collect.end_iteration(batch, {})
    actions = pl.scan_ipc(tmp_path / "nodes" / "*.arrow").filter(pl.col("kind") == 1).collect()
    assert len(actions) == len(sampled) > 0
    key = lambda tokens, logprobs, seed, version: (seed, version, tuple(tokens), tuple(np.float32(logprobs).tolist()))  # noqa: E731
    expected = sorted(key(s.tokens.tolist(), s.logprobs, s.seed, s.policy_version) for s in sampled)
    actual = sorted(
        key(row["tokens"], row["logprobs"], row["seed"], row["policy_version"]) for row in actions.iter_rows(named=True)
    )
    assert actual == expected
    assert set(actions["policy_version"]) == {0, 1}


def test_entropy_branching_fills_its_budget_and_forks_after_tool_results(world, warm_policy):
    policy, tokenizer = warm_policy
    planner = rollout.EntropyBranching(budget=6, initial=2, probability=1.0)
    recipe = recipes.ARPO.replace(rollout=planner)
    collect = arl.Collector(engine.Transformers(policy, tokenizer), world, recipe, **LIMITS)
    batch = collect(tasks=4, group_size=8)
    trajectories = pl.DataFrame(batch.trajectories)
    assert trajectories.group_by("group_id").len()["len"].to_list() == [6] * 4
    nodes = pl.DataFrame(batch.nodes)
    forks = trajectories.filter(pl.col("parent_trajectory").is_not_null())
    assert len(forks) > 0
    branch_nodes = forks.join(nodes, left_on="branch_node", right_on="node_id")
    assert set(branch_nodes["kind"]) == {2}, "branches leave behind an observation"
    assert batch.sharing_ratio > 1.2
    # A branch's inherited steps equal those of its parent, token for token.
    steps = pl.DataFrame(batch.steps)
    inherited = steps.filter(pl.col("trajectory_id") != pl.col("origin_trajectory_id"))
    joined = steps.join(
        inherited, left_on=["trajectory_id", "step"], right_on=["origin_trajectory_id", "step"], suffix="_inherited"
    )
    assert len(joined) == len(inherited) > 0
    assert (joined["node_id"] == joined["node_id_inherited"]).all()
    assert (joined["state_key"] == joined["state_key_inherited"]).all()


def test_an_interrupted_collection_resumes_to_the_same_batch(world, warm_policy, tmp_path):
    policy, tokenizer = warm_policy
    generate = engine.Transformers(policy, tokenizer, batch_invariant=True)
    uninterrupted = arl.Collector(generate, world, recipes.GRPO, **LIMITS)(tasks=2, group_size=4)

    def stop(progress: Progress) -> None:
        if progress.tokens:
            raise KeyboardInterrupt

    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(generate, world, recipes.GRPO, store=store, progress=stop, **LIMITS)
        with pytest.raises(KeyboardInterrupt):
            collect(tasks=2, group_size=4)
        assert (len(store.draws), len(store.trajectories)) == (0, 0), "live groups are in no table"
        assert not store.has_batch(0)
        recorded = store.rollout_log(0).records()
        assert any(b"/segment" in name for name, _ in recorded)
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(generate, world, recipes.GRPO, store=store, **LIMITS)
        batch = collect(tasks=2, group_size=4)
        assert batch.column("token", "token").tolist() == uninterrupted.column("token", "token").tolist()
        assert len(store.draws) == 8
        assert same(batch, uninterrupted)
        assert len(store.trajectories) == 8


def test_a_batch_that_was_not_trained_is_returned_again(world, warm_policy, tmp_path):
    policy, tokenizer = warm_policy
    generate = engine.Transformers(policy, tokenizer)
    with arl.Store.open(tmp_path) as store:
        first = arl.Collector(generate, world, recipes.GRPO, store=store, **LIMITS)(tasks=2, group_size=4)
    with arl.Store.open(tmp_path) as store:
        again = arl.Collector(generate, world, recipes.GRPO, store=store, **LIMITS)
        assert again.iteration == 0
        batch = again(tasks=2, group_size=4)
        assert all(a.equals(b, null_equal=True) for a, b in zip(facts(first), facts(batch), strict=True))
        assert batch.column("score", "draw").tolist() == first.column("score", "draw").tolist()
        again.end_iteration(recipes.GRPO.credit(batch), {"loss": 0.5}, checkpoint="weights.pt")
        assert store.iteration == again.iteration == 1
        count = first.column("token", "token").size
        token_counts = {
            "generated": count,
            "consumed": count,
            "stale": 0,
            "staleness": 0.0,
            "dropped": 0,
            "in_flight": 0,
        }
        token_counts |= {name: store.state["metrics"]["tokens"][name] for name in ("context", "cached")}
        assert token_counts["context"] >= token_counts["cached"] >= 0
        state = store.state
        assert state["run"].pop("tasks")["world"]["tasks"] == 64
        solved = {name: state["metrics"].pop(name) for name in ("success", "success@chain_sum", "success@lcm")}
        # The sampled answers depend on the processor.
        assert solved["success"] == np.mean(first.column("success", "draw") == 1)
        assert solved["success"] == (solved["success@chain_sum"] + solved["success@lcm"]) / 2
        assert state == {
            "metrics": {
                "collect": {"draws": 8, "unscored": 0, "failed": 0, "abandoned": 0},
                "tokens": token_counts,
                "loss": 0.5,
            },
            "checkpoint": "weights.pt",
            "components": {},
            "policy_versions": {"policy": 0},
            "run": {"recipe": recipes.GRPO.to_dict(), "seed": 0, "group_size": 4},
        }
        tasks = pl.DataFrame(store.tasks)
        assert tasks["attempts"].to_list() == [4, 4]


def test_metrics_of_the_update_leave_the_account_of_tokens_whole(world, warm_policy):
    policy, tokenizer = warm_policy
    collect = arl.Collector(engine.Transformers(policy, tokenizer), world, recipes.GRPO, **LIMITS)
    closed = []
    collect.on_iteration(lambda _, metrics: closed.append(metrics))
    batch = recipes.GRPO.credit(collect(tasks=2, group_size=4))
    updates = recipes.GRPO.updates(batch)
    for update in updates:
        for pack in update.pack(max_tokens=4096):
            update.loss(pack.run(policy), pack).backward()
    policy.zero_grad()
    for name in ("collect", "tokens"):
        with pytest.raises(InvalidInputError, match=f"end_iteration: metrics.'{name}'. is .*another name"):
            collect.end_iteration(batch, {name: {"draws": 1}})
    collect.end_iteration(batch, updates.metrics)
    tokens, count = closed[0]["tokens"], batch.column("token", "token").size
    assert (tokens["generated"], tokens["consumed"], tokens["trained"]) == (count, count, updates.metrics["tokens"])
    assert closed[0]["loss"] == updates.metrics["loss"]


def test_groups_without_information_are_rolled_out_but_not_drawn(world, warm_policy):
    policy, tokenizer = warm_policy
    recipe = recipes.GRPO.replace(admit=select.DynamicSampling(max_rounds=3))
    collect = arl.Collector(engine.Transformers(policy, tokenizer), world, recipe, **LIMITS)
    batch = collect(tasks=4, group_size=4)
    groups = batch.keys("group_id", "draw")
    rolled = pl.DataFrame(batch.trajectories)["group_id"].n_unique()
    assert rolled >= 4
    for group in range(batch.num_groups):
        assert len(set(batch.column("score", "draw")[groups == group])) > 1
    assert batch.num_groups <= 4


def test_evaluation_counts_solved_tasks(world, warm_policy):
    _, tokenizer = warm_policy
    chat = engine.Chat(tokenizer)
    tasks = world.tasks(8, split="held_out")
    answers = {task.question: task.payload.entry["answer"] for task in tasks[:6]}

    def reply(tokens):
        question = next((q for q in answers if np.array_equal(chat.prompt(q), tokens)), None)
        return f"<answer>{answers.get(question, 'no')}</answer>"

    script = engine.Scripted(tokenizer, reply)
    evaluation = evaluate(script, world, tasks=8, samples=3)
    assert evaluation.success == 6 / 8
    assert evaluation.successes.tolist() == [3] * 6 + [0] * 2
    kinds = {
        domain: [n for n, each in zip(evaluation.successes, evaluation.domains, strict=True) if each == domain]
        for domain in evaluation.domains
    }
    assert evaluation.by_domain() == pytest.approx(
        {domain: sum(solved) / 3 / len(solved) for domain, solved in kinds.items()}
    )
    assert [evaluation.pass_at(tries) for tries in (1, 3)] == [6 / 8, 6 / 8]
    low, high = evaluation.interval()
    assert 0.3 < low < 6 / 8 < high <= 1
    with pytest.raises(InvalidInputError, match="tries=4; give a whole number from 1 to 3"):
        evaluation.pass_at(4)


def test_the_interval_is_that_of_a_plain_bootstrap():
    successes, samples = np.array([0, 1, 4, 4, 2, 0, 3, 4, 4, 1]), np.full(10, 4)
    evaluation = Evaluation(successes, samples, ["task"] * 10, ["x"] * 10, np.zeros(10), None)
    rng = np.random.default_rng(1)
    means = [rng.choice(successes / 4, 10).mean() for _ in range(20_000)]
    # The distribution has a standard deviation of 0.13; its quantiles from 2 000 samples deviate by less than 0.01.
    assert evaluation.interval() == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.03)
    assert evaluation.interval(confidence=0.5) == pytest.approx(np.quantile(means, [0.25, 0.75]), abs=0.03)
    equal_rates = Evaluation(np.full(5, 2), np.full(5, 4), ["task"] * 5, ["x"] * 5, np.zeros(5), None)
    assert equal_rates.interval() == (0.5, 0.5)


def test_pass_at_k_is_unbiased():
    """Against the share of subsets of k of the n rollouts that contain a success."""
    for n, c in ((1, 0), (1, 1), (5, 2), (7, 6), (6, 0)):
        evaluation = Evaluation(np.array([c]), np.array([n]), ["task"], ["x"], np.array([0.0]), None)
        solved = [1] * c + [0] * (n - c)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(solved, k))
            assert evaluation.pass_at(k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_an_evaluation_touches_nothing_of_the_training(world, warm_policy, tmp_path):
    policy, tokenizer = warm_policy
    generate = engine.Transformers(policy, tokenizer, batch_invariant=True)
    batches = []
    for evaluates in (False, True):
        with arl.Store.open(tmp_path / str(evaluates)) as store:
            collect = arl.Collector(generate, world, recipes.GRPO, store=store, **LIMITS)
            first = collect.evaluate(tasks=6, samples=2) if evaluates else None
            batch = recipes.GRPO.credit(collect(tasks=2, group_size=4))
            collect.end_iteration(batch, {})
            if first is not None:
                second = collect.evaluate(tasks=6, samples=2)
                assert second.successes.tolist() == first.successes.tolist(), "equal weights, equal answers"
                with arl.Store.open(tmp_path / "True" / "evaluations", read_only=True) as evaluations:
                    assert evaluations.iteration == 2
                    assert len(evaluations.draws) == 24
                    assert evaluations.state["iteration"] == 1
            batches.append((batch, pl.DataFrame(store.tasks).rows(), store.state))
    assert same(batches[0][0], batches[1][0])
    assert batches[0][1:] == batches[1][1:]


def test_wrong_calls(world, warm_policy):
    policy, tokenizer = warm_policy
    generate = engine.Transformers(policy, tokenizer)
    with pytest.raises(InvalidInputError, match="tasks=0"):
        arl.Collector(generate, world, recipes.GRPO, **LIMITS)(tasks=0, group_size=4)
    with pytest.raises(InvalidInputError, match="65 tasks cannot be chosen from a pool of 64"):
        arl.Collector(generate, world, recipes.GRPO, **LIMITS)(tasks=65, group_size=1)
    short = arl.Collector(generate, world, recipes.GRPO, context_tokens=4)
    with pytest.warns(AgentRLWarning, match="context_tokens=4"), pytest.warns(AgentRLWarning, match="has no draws"):
        assert short(tasks=1, group_size=1).num_draws == 0
    with pytest.raises(RecipeError, match="advantage"):
        arl.Collector(generate, world, recipes.GRPO.replace(advantage=None))


def test_a_reward_that_waits_for_a_model_joins_the_credit(world, warm_policy):
    policy, tokenizer = warm_policy
    recipe = recipes.GRPO.replace(
        reward=(reward.OutcomeScore(), InformationGain()),
        advantage=advantage.Discounted(column="gain", outcome="score"),
    )
    batch = arl.Collector(engine.Transformers(policy, tokenizer), world, recipe, **LIMITS)(tasks=3, group_size=4)
    assert batch.has("score", "draw")
    assert not batch.has("gain", "step")
    with pytest.raises(RecipeError, match=r"annotate\(batch, 'answer_logprob', policy, probe=probe\)"):
        recipe.credit(batch)
    answers = [tokenizer.encode(str(task)) for task in batch.texts("task_id", "draw")]
    probed = annotate(batch, "answer_logprob", policy, probe=Probe(answers))
    credited = recipe.credit(probed)
    assert np.isfinite(credited.column("advantage", "token")).all()
    gains, steps = credited.column("gain", "step"), np.diff(batch.offsets("step"))
    assert np.isfinite(gains).sum() == (steps - 1).sum() > 0


def test_a_reward_without_a_score_to_admit_by_is_refused(world, warm_policy):
    recipe = recipes.GRPO.replace(reward=(InformationGain(), reward.OutcomeScore()))
    with pytest.raises(RecipeError, match=r"start phase reward with .*reward\.OutcomeScore"):
        arl.Collector(engine.Transformers(*warm_policy), world, recipe)
