"""Bugs of other projects that must not be ours, one test for each thread that reported one.

There are three kinds: one rollout in several rows, rows that only pad a batch, and masks of several turns.
"""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import ragged, small

from agentrl_core import Batch, Forest, group, weight
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.reward import Unscored
from agentrl_core.select import Band
from agentrl_core.weight import FlagFilter, GroupFilter, SelectDraws, SignalRescale
from agentrl_core.weight.denominators import constant_denominator, sequence_mean, turn_mean

CENTRED = GroupRelative(scale="none")


def all_draws(batch: Batch, **options: object) -> np.ndarray:
    return batch.token_weights(np.arange(batch.num_draws), **options)


# One rollout in several rows


def test_skyrl_1492_steps_before_the_last_keep_their_advantage() -> None:
    """SkyRL#1492, #1507: of N steps of a rollout, the first N - 1 had advantage 0 on their trained tokens."""
    batch = CENTRED(small([(0, [2, 3, 1]), (0, [1])], draw_score=[1.0, 0.0]))
    np.testing.assert_array_equal(batch.column("advantage", "token"), [0.5] * 6 + [-0.5])


def test_slime_2300_a_baseline_counts_rollouts() -> None:
    """slime#2300, #2301, #2302: rows voted, so that 3 rows of reward 1 and 1 row of reward 0 had baseline 0.75."""
    batch = CENTRED(small([(0, [1, 1, 1]), (0, [1])], draw_score=[1.0, 0.0]))
    np.testing.assert_array_equal(batch.column("advantage", "draw"), [0.5, -0.5])
    rows = group.normalise([1.0, 1.0, 1.0, 0.0], [0] * 4, voter_ids=["a", "a", "a", "b"], scale="none")
    np.testing.assert_array_equal(rows, [0.5, 0.5, 0.5, -0.5])


def test_rllm_512_a_rollout_weighs_the_same_in_any_number_of_rows() -> None:
    """rLLM#512: a rollout's share of the loss grew with its number of rows."""
    batch = small([(0, [4]), (0, [1, 1, 1, 1]), (0, [1, 2])])
    weights = all_draws(batch, denominator="sequence_mean")
    np.testing.assert_allclose([part.sum() for part in np.split(weights, [4, 8])], [1 / 3] * 3)


def test_agent_lightning_593_the_scale_of_the_loss_does_not_follow_the_rows() -> None:
    """agent-lightning#593: the sum of the loss weights depended on how many rows a batch had."""
    for denominator in ("token_mean", "sequence_mean"):
        for rows in ([6], [3, 3], [1] * 6):
            assert all_draws(small([(0, rows), (0, [2])]), denominator=denominator).sum() == pytest.approx(1.0)


def test_agent_lightning_594_columns_of_rows_name_their_rollout() -> None:
    """agent-lightning#594: without the rollout's id a mean over sequences is a mean over rows."""
    lengths, rollouts = [1, 1, 1, 3], ["a", "a", "a", "b"]
    np.testing.assert_allclose(sequence_mean(lengths, rollout_ids=rollouts), [1 / 6] * 6)


def test_verl_7580_turns_of_a_trajectory_share_its_weight() -> None:
    """verl#7580: trajectories with more outputs weighed more."""
    weights = turn_mean([1, 2, 1, 4], ["a", "a", "a", "b"])
    np.testing.assert_allclose([weights[:4].sum(), weights[4:].sum()], [0.5, 0.5])
    np.testing.assert_allclose([weights[:1].sum(), weights[1:3].sum(), weights[3:4].sum()], [1 / 6] * 3)


def test_uni_agent_185_a_constant_denominator_counts_rollouts() -> None:
    """uni-agent#185: the number of rows was in the denominator instead of the number of rollouts."""
    split = constant_denominator([1, 1, 2], 10.0, rollout_ids=["a", "a", "b"])
    np.testing.assert_allclose(split, constant_denominator([2, 2], 10.0))


def test_rllm_511_equal_ids_in_two_batches_are_separate_groups() -> None:
    """rLLM#511: ids collided, and rollouts of different tasks became one group."""
    parts = [small([(0, [1]), (0, [1])], draw_score=scores) for scores in ([1.0, 0.0], [9.0, 5.0])]
    batch = CENTRED(Batch.concat(parts))
    assert batch.num_groups == 2
    np.testing.assert_array_equal(batch.column("advantage", "draw"), [0.5, -0.5, 2.0, -2.0])


def test_slime_2374_filters_take_groups_of_any_shape() -> None:
    """slime#2374: filters crashed if a group held lists of branches instead of samples."""
    sizes: set[int] = set()
    for seed in range(20):
        batch = GroupRelative()(ragged(seed))
        keep = SelectDraws(fraction=0.5)(GroupFilter(band=Band(at_least=0.1))(batch)).column("keep", "draw")
        scores, groups = batch.column("score", "draw"), batch.keys("group_id", "draw")
        for members in (groups == one for one in np.unique(groups)):
            live = members & np.isfinite(scores)
            rejected = not live.any() or scores[live].std() == 0 or scores[live].mean() < 0.1
            assert keep[members].sum() == (0 if rejected else max(live.sum() // 2, 1))
            sizes.add(int(members.sum()))
    assert len(sizes) > 3


# Padding rows


def test_rllm_508_rows_that_fill_up_do_not_shrink_the_step() -> None:
    """rLLM#508: padding rows were in the denominator, which made the step about 40 % smaller."""
    alone = small([(0, [2]), (0, [3])], draw_score=[1.0, 0.0])
    filled = small([(0, [2]), (0, [3]), (0, [5]), (1, [1])], draw_score=[1.0, 0.0, np.nan, np.nan])
    for denominator in ("token_mean", "sequence_mean"):
        valid = np.isfinite(filled.column("score", "draw"))
        weights = all_draws(filled, denominator=denominator, valid=valid)
        np.testing.assert_array_equal(weights[:5], all_draws(alone, denominator=denominator))
        assert not weights[5:].any()


def test_verl_5969_rows_that_fill_up_do_not_vote() -> None:
    """verl#5969: rows made for an even number of rows took part in statistics."""
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=40), rng.integers(0, 6, size=40)
    more = np.concatenate([values, rng.normal(size=9) * 1e6]), np.concatenate([groups, rng.integers(0, 6, size=9)])
    valid = np.arange(49) < 40
    for options in ({}, {"center": "median", "scale": "mad"}, {"scale_ids": np.zeros(49, np.uint32)}):
        row_options = {name: ids[:40] for name, ids in options.items()} if "scale_ids" in options else options
        result = group.normalise(*more, valid=valid, **options)
        np.testing.assert_array_equal(result[:40], group.normalise(values, groups, **row_options))
        assert not result[40:].any()


def test_agent_r1_88_whitening_ignores_padding_rows() -> None:
    """Agent-R1#88: padding was in the mean and the deviation that all advantages were whitened with."""
    batch = small([(0, [2]), (0, [1]), (1, [7])], draw_score=[3.0, 1.0, np.nan])
    whitened = GroupRelative(group_by="batch", voter="token", eps=0.0)(batch)
    votes = np.array([3.0, 3.0, 1.0])
    expected = [*((np.array([3.0, 1.0]) - votes.mean()) / votes.std(ddof=1)), 0.0]
    np.testing.assert_allclose(whitened.column("advantage", "draw"), expected, rtol=1e-6)


def test_verl_omni_602_rows_that_are_not_valid_change_no_other_row() -> None:
    """verl-omni#602: dummy rows had a part in the loss."""
    batch = small([(0, [2]), (0, [1]), (0, [3])], draw_score=[3.0, 1.0, np.nan])
    result = CENTRED(batch)
    np.testing.assert_array_equal(result.column("advantage", "token"), [1.0, 1.0, -1.0, 0.0, 0.0, 0.0])
    valid = np.isfinite(result.column("score", "draw"))
    np.testing.assert_allclose(all_draws(result, valid=valid), [1 / 3] * 3 + [0.0] * 3)


def test_nemo_rl_4160_the_others_of_leave_one_out_are_valid() -> None:
    """NeMo-RL#4160: a sample that is not valid was in the baseline of the others."""
    result = group.normalise(
        [1.0, 0.0, 100.0, 2.0], [0] * 4, center="leave_one_out", scale="none", valid=[True, True, False, True]
    )
    np.testing.assert_array_equal(result, [0.0, -1.5, 0.0, 1.5])


def test_trl_6367_dead_groups_are_in_no_denominator() -> None:
    """TRL#6367: groups without a signal stayed in the denominator and shrank the step."""
    batch = GroupFilter()(small([(0, [2]), (0, [2]), (1, [2]), (1, [2])], draw_score=[1.0, 0.0, 1.0, 1.0]))
    weights = all_draws(batch, keep=batch.column("keep", "token") != 0)
    np.testing.assert_array_equal(weights, [0.25] * 4 + [0.0] * 4)
    np.testing.assert_array_equal(SignalRescale()(batch).column("weight", "draw"), [2.0] * 4)


def test_trl_5773_one_unknown_reward_poisons_no_group() -> None:
    """TRL#5773: one NaN made the advantages of its group NaN, and then the weights of the model."""
    batch = GroupRelative(eps=0.0)(small([(0, [1])] * 4, draw_score=[1.0, np.nan, 3.0, 2.0]))
    np.testing.assert_allclose(batch.column("advantage", "draw"), [-1.0, 0.0, 1.0, 0.0], atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 7.3e-9, 1.1e7])
def test_nemo_rl_4161_equal_rewards_are_worth_nothing(value: float, dtype: type) -> None:
    """NeMo-RL#4161: the float32 rounding error of equal rewards, over a tiny deviation, gave an advantage of 7428."""
    for size in (2, 3, 7, 16, 1000):
        rewards, one = np.full(size, value, dtype=dtype), np.zeros(size, np.uint32)
        for center in ("mean", "leave_one_out", "median"):
            assert not group.normalise(rewards, one, center=center, eps=0.0).any()
            assert not group.normalise(rewards, one, center=center, eps=1e-6).any()


def test_verl_6348_small_differences_of_large_rewards() -> None:
    """verl#6348: a variance as mean of squares less square of mean lost all digits, or was negative."""
    result = group.normalise([1e4, 1e4 + 1e-3, 1e4 + 2e-3], [0, 0, 0], eps=0.0)
    np.testing.assert_allclose(result, [-1.0, 0.0, 1.0], atol=1e-6)


# Masks of several turns


def talk() -> Batch:
    """Return three turns of the policy with tool output between them; in the second one token was forced."""
    forest = Forest()
    forest.add_group(0, "task")
    trajectory = forest.start(0, 0)
    forest.append(trajectory, [1, 1], kind="prompt")
    for turn, (tokens, trainable) in enumerate((([5, 6], [1, 1]), ([7, 8, 9], [1, 0, 1]), ([4], [1]))):
        if turn:
            forest.append(trajectory, [2, 2, 2], kind="observation", state=f"after {turn}")
        forest.append(trajectory, tokens, kind="action", logprobs=[-1.0] * len(tokens), trainable=trainable)
        forest.step(trajectory)
    forest.finish(trajectory, reward=1.0)
    return forest.freeze()


def test_slime_1563_every_turn_of_the_policy_is_trained() -> None:
    """slime#1563: one block of ones was assumed, so that with several turns the wrong tokens were trained."""
    batch = talk()
    np.testing.assert_array_equal(batch.column("token", "token"), [5, 6, 7, 8, 9, 4])
    np.testing.assert_array_equal(batch.column("position", "token"), [2, 3, 7, 8, 9, 13])


def test_slime_1418_no_token_of_a_tool_is_trained() -> None:
    """slime#1418: masks of turns with tool calls were off by the tokens between them."""
    batch = talk()
    trained = batch.column("trainable", "node_token").astype(bool)
    np.testing.assert_array_equal(batch.column("token", "node_token")[trained], [5, 6, 7, 9, 4])


def test_slime_365_a_token_inside_a_turn_can_be_left_out() -> None:
    """slime#365: if a turn held tokens the policy did not choose, all were trained or none."""
    weights = all_draws(talk())
    np.testing.assert_allclose(weights, [0.2, 0.2, 0.2, 0.0, 0.2, 0.2])


def test_trl_4975_a_mask_is_never_ignored() -> None:
    """TRL#4975: with one kernel the mask of tool tokens was silently not used."""
    batch = talk()
    keep = np.array([True, False, True, True, True, True])
    np.testing.assert_allclose(all_draws(batch, keep=keep), [0.25, 0.0, 0.25, 0.0, 0.25, 0.25])
    with pytest.raises(InvalidInputError, match="keep"):
        all_draws(batch, keep=keep[:3])


def test_rllm_575_tokens_are_never_truncated_silently() -> None:
    """rLLM#575: tokens that did not fit were cut off silently."""
    batch = talk()
    length = int(batch.column("position", "token").max())  # the last token is predicted, not read
    assert len(batch.plan([0], length)) == 1
    with pytest.raises(InvalidInputError, match=str(length)):
        batch.plan([0], length - 1)


def test_trinity_608_cut_off_steps_are_known_and_can_leave() -> None:
    """Trinity-RFT#608: steps that were cut off stayed among the valid ones."""
    forest = Forest()
    forest.add_group(0, "task")
    for member, truncated in enumerate((True, False, False)):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1], kind="prompt")
        forest.append(trajectory, [3, 4], kind="action", logprobs=[-1.0, -1.0])
        forest.step(trajectory, truncated=truncated)
        forest.finish(trajectory, reward=float(member))
    batch = forest.freeze()
    batch = batch.with_columns("draw", score=batch.column("reward", "draw"))
    np.testing.assert_array_equal(FlagFilter(flags="truncated")(batch).column("keep", "draw"), [0, 1, 1])
    result = CENTRED(Unscored(flags="truncated")(batch))
    np.testing.assert_array_equal(result.column("advantage", "draw"), [0.0, -0.5, 0.5])


def test_verl_3910_statistics_over_tokens_are_over_those_of_the_policy() -> None:
    """verl#3910: with several turns, tokens that the policy did not write were treated as its own."""
    batch = talk()
    entropy = np.array([1.0, 2.0, 3.0, 99.0, 4.0, 5.0], np.float32)
    result = weight.EntropyScaled(kind="relative", coefficient=1.0)(batch.with_columns("token", entropy=entropy))
    np.testing.assert_allclose(result.column("weight", "token"), [5 / 3, 4 / 3, 1.0, 1.0, 2 / 3, 1 / 3], rtol=1e-6)
