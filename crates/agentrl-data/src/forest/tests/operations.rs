//! Tests of operations that derive a trajectory from another one.

use agentrl_compute::hash::hash_bytes;

use super::*;
use crate::schema::{FLAG_UNTRAINED, FinishReason, Operation, Origin, Source};

pub(super) fn column<T: arrow_array::ArrowPrimitiveType>(rows: &RecordBatch, name: &str) -> Vec<Option<T::Native>> {
    rows[name].as_primitive::<T>().iter().collect()
}

pub(super) fn tokens(batch: &Batch) -> Vec<i32> {
    let Numbers::I32(tokens) = batch.column("token", Level::Token).unwrap() else { panic!("tokens are i32") };
    tokens
}

pub(super) fn trainable(batch: &Batch) -> Vec<u8> {
    let Numbers::U8(mask) = batch.column("trainable", Level::Token).unwrap() else { panic!("a mask is u8") };
    mask
}

pub(super) fn acted(forest: &mut Forest, trajectory: Handle, token: i32, reward: f32) -> Handle {
    let node = forest.append(trajectory, NewNode::action(vec![token, token + 1], vec![-0.5, -0.25])).unwrap();
    forest.step(trajectory, &StepOutcome { reward: Some(reward), ..StepOutcome::default() }).unwrap();
    node
}

pub(super) fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

pub(super) fn forks(count: u32, ordinal: Option<u32>) -> Fork {
    Fork { count, ordinal, ..Fork::default() }
}

#[test]
fn a_rewritten_context_is_a_sequence_of_its_own() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let trajectory = forest.start(0, 0)?;
    forest.append(trajectory, NewNode::prompt(vec![1, 2]))?;
    acted(&mut forest, trajectory, 10, 0.5);
    forest.append(trajectory, NewNode { state: Some(b"room".to_vec()), ..NewNode::observation(vec![3]) })?;
    // The new context repeats the prompt and the first generated token, then differs.
    assert_eq!(forest.rewrite(trajectory, &[1, 2, 10, 7, 8], &[], None)?, 3);
    assert_eq!(forest.tokens(trajectory)?, [1, 2, 10, 7, 8]);
    acted(&mut forest, trajectory, 20, 0.0);
    forest.append(trajectory, NewNode::observation(vec![4]))?;
    acted(&mut forest, trajectory, 30, 1.0);
    // A window: only the beginning is left.
    assert_eq!(forest.rewrite(trajectory, &[1, 2], &[], Some(b"cut"))?, 2);
    acted(&mut forest, trajectory, 40, 0.0);
    forest.finish(trajectory, Finish::default())?;
    let batch = forest.freeze()?;
    assert_eq!(tokens(&batch), [10, 11, 20, 21, 30, 31, 40, 41]);
    assert_eq!(batch.column("position", Level::Token)?, Numbers::I32(vec![2, 3, 5, 6, 8, 9, 2, 3]));
    let kinds = column::<UInt8Type>(batch.nodes(), "kind");
    assert_eq!(kinds.iter().filter(|&&kind| kind == Some(3)).count(), 1, "one injected node");
    let keys = batch.keys("state_key", Level::Step)?;
    assert_eq!(keys, [0, 1, 2, 3], "prompt, room (kept through the rewrite), observation, cut");

    let packs = batch.plan(&PlanOptions { draws: &[0], max_tokens: 100, ..PlanOptions::default() })?.packs()?;
    let pack = &packs[0];
    assert_eq!((packs.len(), pack.draw.as_slice()), (1, [0, 0, 0].as_slice()));
    let mut sequences: Vec<&[i64]> =
        pack.cu_seqlens.windows(2).map(|pair| &pack.input_ids[pair[0] as usize..pair[1] as usize]).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, [&[1, 2, 10][..], &[1, 2, 10, 7, 8, 20, 21, 4, 30], &[1, 2, 40]]);
    let mut trained = pack.token.clone();
    trained.sort_unstable();
    assert_eq!(trained, (0..8).collect::<Vec<_>>(), "each token once");
    assert_eq!(batch.path_tokens(), 4 + 10 + 4);
    Ok(())
}

#[test]
fn a_fork_of_a_rewritten_trajectory_keeps_the_steps_before_it() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let trunk = forest.start(0, 0)?;
    let prompt = forest.append(trunk, NewNode::prompt(vec![1, 2]))?;
    let first = acted(&mut forest, trunk, 10, 0.5);
    forest.rewrite(trunk, &[1, 9], &[], None)?;
    let second = acted(&mut forest, trunk, 20, 0.5);
    let branches = [
        (forest.fork(trunk, None, None)?, vec![10, 11, 20, 21, 50, 51]),
        (forest.fork(trunk, Some(second), Some(1))?, vec![10, 11, 20, 50, 51]),
        (forest.fork(trunk, Some(first), None)?, vec![10, 11, 50, 51]),
        (forest.fork(trunk, Some(first), Some(1))?, vec![10, 50, 51]),
        (forest.fork(trunk, Some(prompt), None)?, vec![50, 51]),
    ];
    forest.finish(trunk, Finish::default())?;
    let expected: BTreeMap<i32, Vec<i32>> =
        (0..).zip(&branches).map(|(reward, (_, tokens))| (reward, tokens.clone())).collect();
    for (reward, (branch, _)) in branches.iter().enumerate() {
        acted(&mut forest, *branch, 50, 0.0);
        forest.finish(*branch, Finish { reward: Some(reward as f32), ..Finish::default() })?;
    }
    let batch = forest.freeze()?;
    let Numbers::F32(rewards) = batch.column("reward", Level::Draw)? else { panic!("rewards are f32") };
    let (steps, offsets) = (batch.offsets(Level::Step)?, batch.offsets(Level::Token)?);
    let all = tokens(&batch);
    for (draw, reward) in rewards.iter().enumerate().filter(|(_, reward)| !reward.is_nan()) {
        let part = offsets[steps[draw] as usize] as usize..offsets[steps[draw + 1] as usize] as usize;
        assert_eq!(all[part], expected[&(*reward as i32)], "branch {reward}");
    }
    Ok(())
}

#[test]
fn a_splice_copies_the_end_of_another_trajectory() -> Result<()> {
    let (mut forest, prefix, _, action) = small();
    forest.step(prefix, &StepOutcome::default())?;
    let suffix = forest.start(0, 1)?;
    forest.append(suffix, NewNode::prompt(vec![1, 2, 3]))?;
    acted(&mut forest, suffix, 20, 0.25);
    let result =
        forest.append(suffix, NewNode { state: Some(b"seen".to_vec()), ..NewNode::observation(vec![5, 6]) })?;
    acted(&mut forest, suffix, 30, 1.0);
    let spliced = forest.splice(prefix, (Some(action), Some(3)), suffix, (result, 1))?;
    assert_eq!(forest.tokens(spliced)?, [1, 2, 3, 4, 5, 6, 6, 30, 31]);
    forest.abort();
    for trajectory in [prefix, suffix] {
        forest.prune(trajectory, "only the splice is drawn", false)?;
    }
    let branch = forest.fork(spliced, None, None)?;
    acted(&mut forest, branch, 40, 0.0);
    forest.finish(branch, Finish::default())?;
    let batch = forest.freeze()?;
    assert_eq!(tokens(&batch), [4, 5, 6, 30, 31, 40, 41]);
    let Numbers::F32(rewards) = batch.column("reward", Level::Step)? else { panic!("rewards are f32") };
    assert!(rewards[0].is_nan() && rewards[1..] == [1.0, 0.0], "{rewards:?}");
    let Numbers::F32(logprobs) = batch.column("behaviour_logprob", Level::Token)? else { panic!("f32") };
    let known: Vec<bool> = logprobs.iter().map(|value| !value.is_nan()).collect();
    assert_eq!(known, [true, true, true, false, false, true, true]);
    let origins = column::<Int64Type>(batch.nodes(), "origin_node_id");
    let ids = column::<Int64Type>(batch.nodes(), "node_id");
    let lists = batch.nodes()["tokens"].as_list::<i32>().clone();
    let row = |id: Option<i64>| ids.iter().position(|&other| other == id);
    let copies: Vec<(Vec<i32>, Vec<i32>)> = (0..ids.len())
        .filter_map(|copy| origins[copy].map(|origin| (copy, row(Some(origin)).unwrap())))
        .map(|(copy, origin)| [copy, origin].map(|row| lists.value(row).as_primitive::<Int32Type>().values().to_vec()))
        .map(|[copy, origin]| (copy, origin))
        .collect();
    assert_eq!(copies, [(vec![6], vec![5, 6]), (vec![30, 31], vec![30, 31])]);
    let old = column::<UInt8Type>(batch.draws(), "old_logprob");
    assert_eq!(old, [Some(2)], "no log-prob of the behaviour for all of its actions");
    Ok(())
}

#[test]
fn a_splice_inside_an_action_is_one_action() -> Result<()> {
    let (mut forest, prefix, _, action) = small();
    let suffix = forest.start(0, 1)?;
    forest.append(suffix, NewNode::prompt(vec![1, 2, 3]))?;
    let other = acted(&mut forest, suffix, 20, 0.25);
    let spliced = forest.splice(prefix, (Some(action), Some(1)), suffix, (other, 1))?;
    forest.finish(spliced, Finish::default())?;
    forest.abort();
    let batch = forest.freeze()?;
    assert_eq!(tokens(&batch), [4, 21]);
    assert_eq!(column::<arrow_array::types::Float32Type>(batch.steps(), "reward").last(), Some(&Some(0.25)));
    Ok(())
}

#[test]
fn rollback_and_replace_leave_the_old_trajectory_behind() -> Result<()> {
    let (mut forest, trunk, prompt, _) = small();
    let back = forest.rollback(trunk, prompt, Some(2))?;
    acted(&mut forest, back, 50, 1.0);
    let better = forest.start(0, 1)?;
    forest.append(better, NewNode::prompt(vec![9]))?;
    acted(&mut forest, better, 60, 1.0);
    forest.finish(better, Finish { info: Some("{\"x\":1}".to_owned()), ..Finish::default() })?;
    forest.finish(back, Finish { info: Some("7".to_owned()), ..Finish::default() })?;
    forest.replace(back, better)?;
    assert!(message(forest.replace(better, back)).contains("which was pruned"));
    assert!(message(forest.replace(better, better)).contains("give another trajectory of the same group"));
    let batch = forest.freeze()?;
    let infos: Vec<_> = batch.trajectories()["info"].as_string::<i32>().iter().collect();
    assert_eq!(
        infos,
        [Some(r#"{"pruned":"rolled back","info":null}"#), Some(r#"{"replaced_by":2,"info":7}"#), Some(r#"{"x":1}"#)]
    );
    assert_eq!(column::<UInt8Type>(batch.trajectories(), "status"), [Some(3), Some(3), Some(0)]);
    assert_eq!(tokens(&batch), [60, 61]);
    Ok(())
}

#[test]
fn gradient_only_keeps_the_vote_and_leaves_shared_tokens_to_the_others() -> Result<()> {
    let (mut forest, trunk, _, action) = small();
    let branch = forest.fork(trunk, Some(action), Some(2))?;
    forest.prune(branch, "repeats itself", true)?;
    forest.append(branch, NewNode::action(vec![8], vec![-0.7]))?;
    forest.finish(branch, Finish { reward: Some(1.0), ..Finish::default() })?;
    forest.finish(trunk, Finish::default())?;
    let batch = forest.freeze()?;
    assert_eq!(batch.num_draws(), 2);
    assert_eq!(trainable(&batch), [1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(column::<arrow_array::types::UInt32Type>(batch.steps(), "flags"), [Some(0), Some(FLAG_UNTRAINED)]);
    let shares = |shared| {
        let (denominator, valid) = (agentrl_compute::weight::Denominator::Constant(1.0), None);
        batch.token_weights(&crate::batch::TokenWeights { draws: &[0, 1], denominator, shared, valid, keep: None })
    };
    for shared in [agentrl_compute::weight::Shared::Split, agentrl_compute::weight::Shared::Owner] {
        assert_eq!(shares(shared)?, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], "nobody else trains the shared tokens");
    }
    Ok(())
}

#[test]
fn branches_that_share_part_of_an_action_share_its_tokens_only() -> Result<()> {
    let (mut forest, trunk, _, action) = small();
    let branch = forest.fork(trunk, Some(action), Some(2))?;
    forest.append(branch, NewNode::action(vec![8], vec![-0.7]))?;
    for trajectory in [trunk, branch] {
        forest.finish(trajectory, Finish::default())?;
    }
    let batch = forest.freeze()?;
    let (denominator, valid) = (agentrl_compute::weight::Denominator::Constant(0.5), None);
    let weights = |shared| {
        batch.token_weights(&crate::batch::TokenWeights { draws: &[0, 1], denominator, shared, valid, keep: None })
    };
    assert_eq!(weights(agentrl_compute::weight::Shared::Split)?, [0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 1.0]);
    assert_eq!(weights(agentrl_compute::weight::Shared::Owner)?, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn a_partial_trajectory_is_stored_adopted_and_resumed() -> Result<()> {
    let (mut forest, trunk, _, _) = small();
    forest.step(trunk, &StepOutcome { reward: Some(0.5), ..StepOutcome::default() })?;
    forest.append(trunk, NewNode { state: Some(b"here".to_vec()), ..NewNode::observation(vec![9]) })?;
    let begun = NewNode { policy_version: Some(3), ..NewNode::action(vec![20], vec![-1.0]) };
    forest.append(trunk, begun)?;
    let done = forest.start(0, 1)?;
    forest.append(done, NewNode::prompt(vec![1, 2, 3]))?;
    acted(&mut forest, done, 70, 1.0);
    forest.finish(done, Finish { reward: Some(1.0), ..Finish::default() })?;
    assert_eq!(forest.freeze()?.num_draws(), 0, "the group is not complete");
    let stored = forest.freeze_partial()?;
    assert!(forest.is_empty());
    assert_eq!(column::<UInt8Type>(stored.trajectories(), "status"), [Some(5), Some(0)]);
    let stored = stored.select_draws(&[])?;

    let mut later = Forest::new(4, 11);
    later.add_group(7, "task")?;
    let adopted = later.adopt(7, &stored, 0, None)?;
    later.adopt(7, &stored, 1, Some(Source::Replay))?;
    assert!(message(later.adopt(7, &stored, 0, None)).contains("adopted by group 7 already"));
    assert!(message(later.adopt(7, &stored, 5, None)).contains("trajectory 5 is not in the batch"));
    assert!(message(later.adopt(7, &stored, 1, Some(Source::Fresh))).contains("\"fresh\""));
    assert!(message(later.append(adopted, NewNode::observation(vec![1]))).contains("is stored (Partial)"));
    assert!(message(later.prune(adopted, "no", false)).contains("is stored"));
    let resumed = later.fork(adopted, None, None)?;
    later.append(resumed, NewNode { policy_version: Some(4), ..NewNode::action(vec![21], vec![-2.0]) })?;
    later.step(resumed, &StepOutcome { reward: Some(1.0), ..StepOutcome::default() })?;
    later.finish(resumed, Finish { reward: Some(1.5), ..Finish::default() })?;
    let batch = later.freeze()?;
    assert_eq!((batch.base().node, batch.base().trajectory, batch.base().group), (5, 2, 1));
    assert_eq!(column::<Int64Type>(batch.trajectories(), "trajectory_id"), [Some(0), Some(1), Some(2)]);
    assert_eq!(column::<Int64Type>(batch.trajectories(), "parent_trajectory"), [None, None, Some(0)]);
    assert_eq!(column::<Int64Type>(batch.trajectories(), "iteration"), [Some(3), Some(3), Some(4)]);
    let versions =
        ["min_policy_version", "max_policy_version"].map(|name| column::<Int64Type>(batch.trajectories(), name)[2]);
    assert_eq!(versions, [Some(3), Some(4)]);
    assert_eq!(column::<UInt8Type>(batch.draws(), "source"), [Some(1), Some(0)]);
    assert_eq!(column::<Int64Type>(batch.draws(), "group_id"), [Some(1), Some(1)], "both vote in the new group");
    assert_eq!(tokens(&batch), [70, 71, 4, 5, 6, 7, 20, 21], "the interrupted action is one action");
    assert_eq!(batch.keys("origin_trajectory_id", Level::Step)?, [0, 1, 2]);
    let trajectories = column::<Int64Type>(batch.steps(), "trajectory_id");
    let origins = column::<Int64Type>(batch.steps(), "origin_trajectory_id");
    assert_eq!(trajectories, [Some(0), Some(1), Some(2), Some(2)]);
    assert_eq!(origins, [Some(0), Some(1), Some(0), Some(2)]);
    // The resumed action acted on a state that is stored only with the leaf.
    let keys: Vec<_> = batch.steps()["state_key"].as_fixed_size_binary().iter().flatten().map(<[u8]>::to_vec).collect();
    assert_eq!(keys[3], hash_bytes(b"here"));
    for name in ["node_id", "parent_id"] {
        let (old, new) = (column::<Int64Type>(stored.nodes(), name), column::<Int64Type>(batch.nodes(), name));
        assert_eq!(new[..5], old[..], "adopted rows are as they were");
    }
    Ok(())
}

#[test]
fn the_interrupted_action_of_a_leaf_state_is_found_without_a_step() -> Result<()> {
    let (forest, ..) = small();
    let mut forest = forest;
    let stored = forest.freeze_partial()?;
    assert_eq!(stored.steps().num_rows(), 0);
    let mut later = Forest::new(0, 0);
    later.add_group(0, "task")?;
    let adopted = later.adopt(0, &stored, 0, None)?;
    let resumed = later.fork(adopted, None, None)?;
    later.finish(resumed, Finish::default())?;
    assert_eq!(tokens(&later.freeze()?), [4, 5, 6, 7]);
    Ok(())
}

#[test]
fn agents_share_an_episode_and_groups_that_answer_each_other_freeze_together() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "propose")?;
    forest.add_group(1, "solve")?;
    let proposer = forest.start(0, 0)?;
    let start = Start { agent: 1, episode: Some(proposer), parent: Some(proposer), ..Start::default() };
    let solver = forest.start_as(1, &Start { origin: Some(Origin::Imagined), ..start })?;
    let judge = forest.start_as(1, &Start { agent: 2, episode: Some(solver), ..Start::default() })?;
    assert!(message(forest.start_as(1, &start)).contains("member 0 of agent 1 of group 1 was started already"));
    assert!(message(forest.start_as(1, &Start { parent: Some(99), ..Start::default() })).contains("trajectory 99"));
    for trajectory in [solver, judge, proposer] {
        assert_ne!(
            forest.segment_seed(trajectory)?,
            forest.segment_seed(if trajectory == solver { judge } else { solver })?
        );
        assert!(forest.freeze()?.trajectories().num_rows() == 0, "someone of the episode is running");
        forest.append(trajectory, NewNode::prompt(vec![1]))?;
        acted(&mut forest, trajectory, 10, 0.0);
        forest.finish(trajectory, Finish::default())?;
    }
    let batch = forest.freeze()?;
    let rows = batch.trajectories();
    assert_eq!(column::<Int64Type>(rows, "group_id"), [Some(0), Some(1), Some(1)]);
    assert_eq!(column::<Int32Type>(rows, "agent"), [Some(0), Some(1), Some(2)]);
    assert_eq!(column::<Int64Type>(rows, "episode_id"), [Some(0); 3]);
    assert_eq!(column::<Int64Type>(rows, "parent_trajectory"), [None, Some(0), None]);
    assert_eq!(rows["branch_node"].null_count(), 3);
    assert_eq!(column::<UInt8Type>(batch.draws(), "source"), [Some(0), Some(4), Some(0)]);
    Ok(())
}

#[test]
fn blobs_travel_with_the_nodes_that_show_them() -> Result<()> {
    let mut forest = Forest::new(0, 0).with_max_blob_bytes(8);
    forest.add_group(0, "task")?;
    let (shown, _unused) = (forest.add_blob(b"picture")?, forest.add_blob(b"other")?);
    assert_eq!(forest.add_blob(b"picture")?, shown);
    assert!(message(forest.add_blob(b"too large")).contains("has 9 bytes, but max_blob_bytes is 8"));
    let trajectory = forest.start(0, 0)?;
    let unknown = NewNode { blobs: vec![[7; 32]], ..NewNode::prompt(vec![1]) };
    assert!(message(forest.append(trajectory, unknown)).contains("blob 07070707"));
    forest.append(trajectory, NewNode { blobs: vec![shown], ..NewNode::prompt(vec![1]) })?;
    forest.abort();
    let batch = forest.freeze()?;
    assert_eq!(batch.blobs().keys().collect::<Vec<_>>(), [&shown]);
    assert_eq!(batch.blobs()[&shown].as_ref(), b"picture");
    let mut later = Forest::new(1, 0);
    later.add_group(0, "task")?;
    later.adopt(0, &batch, 0, None)?;
    assert_eq!(later.freeze()?.blobs().len(), 1, "an adopted node brings its blobs");
    Ok(())
}

#[test]
fn names_of_reward_components_and_the_estimator_of_entropies_are_kept() -> Result<()> {
    let names = vec!["format".to_owned(), "answer".to_owned()];
    let mut forest = Forest::new(0, 0).with_reward_components(names.clone()).with_entropies("top_10");
    forest.add_group(0, "task")?;
    let trajectory = forest.start(0, 0)?;
    forest.append(trajectory, NewNode::action(vec![1], vec![-1.0]))?;
    let outcome = StepOutcome { rewards: Some(vec![1.0]), ..StepOutcome::default() };
    assert!(message(forest.step(trajectory, &outcome)).contains("rewards has 1 values"));
    forest.step(trajectory, &StepOutcome { rewards: Some(vec![1.0, 0.0]), ..outcome })?;
    forest.finish(trajectory, Finish::default())?;
    let batch = forest.freeze()?;
    assert_eq!((batch.reward_components()?, batch.entropies().as_deref()), (Some(names), Some("top_10")));
    Ok(())
}

#[test]
fn decisions_are_ordered_by_what_they_act_on() -> Result<()> {
    let write = |swapped: bool| -> Result<Batch> {
        let (mut forest, trunk, prompt, _) = small();
        let branch = forest.fork_many(trunk, None, None, &forks(1, Some(0)))?[0];
        let mut log = vec![
            Decision { score: Some(0.5), result: Some(branch), ..Decision::new(Operation::Fork, trunk, 0) },
            Decision { node: Some(prompt), end: Some(1), ..Decision::new(Operation::Stop, branch, 1) },
            Decision { reason: Some("why".to_owned()), ..Decision::new(Operation::Continue, trunk, 1) },
            Decision { ordinal: Some(0), ..Decision::new(Operation::Prune, branch, 1) },
        ];
        if swapped {
            log.reverse();
        }
        log.into_iter().try_for_each(|decision| forest.decide(decision))?;
        assert!(message(forest.decide(Decision::new(Operation::Stop, 99, 0))).contains("trajectory 99"));
        let elsewhere = Decision { node: Some(77), ..Decision::new(Operation::Stop, trunk, 0) };
        assert!(message(forest.decide(elsewhere)).contains("node is 77"));
        assert!(message(forest.decide(Decision::new(Operation::Stop, trunk, u32::MAX))).contains("in_round is"));
        forest.abort();
        forest.freeze()
    };
    let (batch, other) = (write(false)?, write(true)?);
    assert_eq!(without_time(&batch), without_time(&other));
    let rows = batch.decisions();
    assert_eq!(column::<Int32Type>(rows, "round"), [Some(0), Some(1), Some(1), Some(1)]);
    assert_eq!(column::<Int32Type>(rows, "ordinal"), [Some(0), Some(0), Some(1), Some(2)]);
    let operations =
        [Operation::Fork, Operation::Prune, Operation::Continue, Operation::Stop].map(|code| Some(code as u8));
    assert_eq!(column::<UInt8Type>(rows, "operation"), operations);
    assert_eq!(column::<Int64Type>(rows, "trajectory_id"), [Some(0), Some(1), Some(0), Some(1)]);
    assert_eq!(column::<Int64Type>(rows, "result_trajectory_id"), [Some(1), None, None, None]);
    Ok(())
}

#[test]
fn seeds_do_not_repeat() -> Result<()> {
    let (mut forest, trunk, _, action) = small();
    let mut seeds = vec![forest.segment_seed(trunk)?];
    forest.append(trunk, NewNode::action(vec![9], vec![-0.1]))?;
    seeds.push(forest.segment_seed(trunk)?);
    for way in forest.fork_many(trunk, Some(action), Some(2), &forks(3, None))? {
        seeds.push(forest.segment_seed(way)?);
    }
    for way in forest.fork_many(trunk, Some(action), Some(2), &forks(2, Some(0)))? {
        seeds.push(forest.segment_seed(way)?);
    }
    assert!(
        message(forest.fork_many(trunk, Some(action), Some(2), &forks(2, Some(1)))).contains("ordinal 1 was given")
    );
    assert!(message(forest.fork_many(trunk, None, None, &forks(0, None))).contains("count is 0"));
    forest.step(trunk, &StepOutcome::default())?;
    seeds.push(forest.segment_seed(trunk)?);
    let count = seeds.len();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), count);
    Ok(())
}

#[test]
fn the_tree_and_the_frontier_are_seen_while_they_grow() -> Result<()> {
    let (mut forest, trunk, prompt, action) = small();
    let branch = forest.fork(trunk, Some(action), Some(2))?;
    let left = forest.append(trunk, NewNode::observation(vec![1]))?;
    let right = forest.append(branch, NewNode::observation(vec![2]))?;
    let tree = forest.tree(0)?;
    assert_eq!(tree.nodes(), [prompt, action, left, right]);
    assert_eq!(tree.parents(), [-1, prompt, action, action]);
    assert_eq!(tree.path(right)?, [prompt, action, right]);
    assert_eq!(tree.ancestors(left)?, [action, prompt]);
    assert_eq!(tree.children(action)?, [left, right]);
    assert_eq!(tree.subtree(action)?, [action, left, right]);
    assert_eq!(tree.leaves(), [left, right]);
    assert_eq!(
        (tree.lowest_common_ancestor(left, right)?, tree.lowest_common_ancestor(left, left)?),
        (Some(action), Some(left))
    );
    assert!(message(tree.path(77)).contains("node 77 is not in the tree"));
    assert!(message(forest.tree(3)).contains("group 3"));
    let frontier = forest.frontier(Some(0))?;
    assert_eq!((frontier.trajectory, frontier.node), (vec![trunk, branch], vec![left, right]));
    assert_eq!((frontier.length, frontier.steps, frontier.end), (vec![8, 6], vec![1, 1], vec![1, 1]));
    forest.finish(trunk, Finish::default())?;
    assert_eq!(forest.frontier(None)?.trajectory, [branch]);
    forest.abort();
    let batch = forest.freeze()?;
    assert_eq!(batch.tree()?.parents(), [-1, 0, 1, 1]);
    assert_eq!(batch.tree()?.topology().leaf_counts(), [2, 2, 1, 1]);
    Ok(())
}

#[test]
fn a_limit_that_cut_a_trajectory_is_one_fact() {
    let step = |terminated, truncated| Some(StepOutcome { terminated, truncated, ..StepOutcome::default() });
    let cases = [
        (FinishReason::Stop, None, Status::Finished, false),
        (FinishReason::Stop, None, Status::Truncated, true),
        (FinishReason::Stop, step(false, true), Status::Finished, true),
        (FinishReason::Length, None, Status::Finished, true),
        (FinishReason::Length, step(false, false), Status::Finished, true),
        (FinishReason::Length, step(true, false), Status::Finished, false),
        (FinishReason::Length, step(true, false), Status::Truncated, true),
        (FinishReason::Length, None, Status::Failed, false),
    ];
    for (finish_reason, outcome, status, cut) in cases {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task").unwrap();
        let trajectory = forest.start(0, 0).unwrap();
        forest.append(trajectory, NewNode::prompt(vec![1])).unwrap();
        for (token, reason) in [(2, FinishReason::Length), (4, finish_reason)] {
            let action = NewNode { finish_reason: reason, ..NewNode::action(vec![token], vec![-0.5]) };
            forest.append(trajectory, action).unwrap();
            if token == 2 {
                forest.step(trajectory, &StepOutcome::default()).unwrap();
                forest.append(trajectory, NewNode::observation(vec![3])).unwrap();
            }
        }
        if let Some(outcome) = &outcome {
            forest.step(trajectory, outcome).unwrap();
        }
        forest.finish(trajectory, Finish { status, ..Finish::default() }).unwrap();
        let batch = forest.freeze().unwrap();
        let found = batch.trajectories()["status"].as_primitive::<UInt8Type>().value(0);
        let ended = if cut { Status::Truncated } else { status };
        assert_eq!(found, ended as u8, "{finish_reason:?} {outcome:?} {status:?}");
        let steps = batch.steps()["truncated"].as_primitive::<UInt8Type>().values().to_vec();
        assert_eq!(steps, [0, u8::from(cut)], "{finish_reason:?} {outcome:?} {status:?}");
    }
}
