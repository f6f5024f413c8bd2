//! Tests of forest operations that rollout programs use besides forks: keys of groups, repairs, snapshots, other
//! prompts.

use agentrl_compute::hash::hash_bytes;

use super::operations::{acted, column, forks, message, tokens, trainable};
use super::*;
use crate::schema::{FLAG_UNTRAINED, OldLogprob};
use arrow_array::types::{Float32Type, UInt32Type};

/// Start two members in a group; the first takes two turns, the second one.
fn grown(forest: &mut Forest, group: u32) -> (Handle, Handle) {
    let (first, second) = (forest.start(group, 0).unwrap(), forest.start(group, 1).unwrap());
    for trajectory in [first, second] {
        forest.append(trajectory, NewNode::prompt(vec![1, 2])).unwrap();
        acted(forest, trajectory, 10, 0.5);
    }
    forest.append(first, NewNode::observation(vec![3])).unwrap();
    acted(forest, first, 20, 1.0);
    (first, second)
}

#[test]
fn seeds_and_rows_follow_from_the_key_of_a_group_and_not_from_its_number() -> Result<()> {
    let begun = |key: Option<&[u64]>, number: u32, iteration: i64| -> Result<u64> {
        let mut forest = Forest::new(iteration, 7);
        match key {
            Some(key) => forest.add_group_as(number, "task", key)?,
            None => forest.add_group(number, "task")?,
        }
        let trajectory = forest.start(number, 1)?;
        forest.segment_seed(trajectory)
    };
    let plain = begun(None, 3, 2)?;
    assert_eq!(
        plain,
        agentrl_compute::rng::structural_seed(&[7, 2, 3, 1, 1, 0]),
        "run, iteration, group, member, step"
    );
    assert_eq!(begun(Some(&[2, 3]), 9, 5)?, plain);
    let others: [&[u64]; 5] = [&[2, 4], &[2], &[2, 3, 0], &[2, 3, 1], &[0, 2, 3]];
    let mut seeds = others.iter().map(|key| begun(Some(key), 3, 2)).collect::<Result<Vec<_>>>()?;
    seeds.push(plain);
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 6, "no two keys have a seed in common");

    let keys: [&[u64]; 4] = [&[4, 0, 1], &[3, 7], &[4, 0], &[4, 1]];
    let frozen = |order: &[usize]| -> Result<Batch> {
        let mut forest = Forest::new(4, 0);
        for (number, &which) in (0..).zip(order) {
            forest.add_group_as(number, &format!("task {which}"), keys[which])?;
            grown(&mut forest, number);
        }
        forest.abort();
        forest.freeze()
    };
    let batch = frozen(&[0, 1, 2, 3])?;
    let tasks: Vec<_> = batch.trajectories()["task_id"].as_string::<i32>().iter().flatten().step_by(2).collect();
    assert_eq!(tasks, ["task 1", "task 2", "task 0", "task 3"]);
    assert_eq!(column::<Int64Type>(batch.trajectories(), "group_id").iter().flatten().max(), Some(&3));
    assert_eq!(without_time(&frozen(&[3, 0, 2, 1])?), without_time(&batch));
    Ok(())
}

#[test]
fn a_key_is_whole_and_belongs_to_one_live_group() -> Result<()> {
    let mut forest = Forest::new(1, 0);
    forest.add_group(0, "task")?;
    assert!(
        message(forest.add_group_as(1, "task", &[1, 0]))
            .contains("key [1, 0] of group 1 is already the key of group 0")
    );
    assert!(message(forest.add_group_as(1, "task", &[])).contains("key is empty"));
    assert!(message(forest.add_group_as(1, "task", &[2, 1 << 63])).contains("key[1] is 9223372036854775808"));
    assert_eq!(forest.len(), 1, "what was refused is not there");
    grown(&mut forest, 0);
    forest.abort();
    forest.freeze()?;
    forest.add_group_as(5, "task", &[1, 0])?;
    assert!(message(forest.add_group(0, "task")).contains("is already the key of group 5"));
    Ok(())
}

#[test]
fn a_cut_that_is_put_back_freezes_in_the_same_order() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    for (number, key) in [(0, [9, 9]), (1, [0, 1])] {
        forest.add_group_as(number, &format!("task {number}"), &key)?;
        grown(&mut forest, number);
    }
    forest.abort();
    let groups = forest.take_groups(false);
    forest.restore(groups);
    assert!(message(forest.add_group_as(2, "task", &[9, 9])).contains("the key of group 0"));
    let batch = forest.freeze()?;
    let tasks: Vec<_> = batch.trajectories()["task_id"].as_string::<i32>().iter().flatten().collect();
    assert_eq!(tasks, ["task 1", "task 1", "task 0", "task 0"]);
    Ok(())
}

#[test]
fn pruned_and_rolled_back_trajectories_can_be_forked() -> Result<()> {
    let (mut forest, trunk, prompt, action) = small();
    forest.step(trunk, &StepOutcome { reward: Some(0.25), ..StepOutcome::default() })?;
    let back = forest.rollback(trunk, prompt, None)?;
    assert!(message(forest.rollback(trunk, action, None)).contains("is pruned; fork it"));
    // The repair continues the rolled-back trajectory, inside its action and after it.
    let inside = forest.fork(trunk, Some(action), Some(2))?;
    let behind = forest.fork(trunk, None, None)?;
    forest.prune(back, "dull", false)?;
    let again = forest.fork(back, None, None)?;
    for trajectory in [inside, behind, again] {
        forest.append(trajectory, NewNode::action(vec![9], vec![-0.5]))?;
        forest.finish(trajectory, Finish::default())?;
    }
    let batch = forest.freeze()?;
    let mut drawn: Vec<Vec<i32>> = Vec::new();
    let (steps, offsets) = (batch.offsets(Level::Step)?, batch.offsets(Level::Token)?);
    for draw in 0..batch.num_draws() {
        drawn.push(
            tokens(&batch)[offsets[steps[draw] as usize] as usize..offsets[steps[draw + 1] as usize] as usize].to_vec(),
        );
    }
    drawn.sort();
    assert_eq!(drawn, [vec![4, 5, 6, 7, 9], vec![4, 5, 9], vec![9]]);
    Ok(())
}

#[test]
fn an_untrained_prefix_is_left_out_by_this_branch_alone() -> Result<()> {
    let (mut forest, trunk, _, action) = small();
    forest.step(trunk, &StepOutcome::default())?;
    let untrained = Fork { train_prefix: false, ..Fork::default() };
    let mended = forest.fork_many(trunk, None, None, &untrained)?[0];
    forest.append(mended, NewNode::action(vec![8], vec![-0.5]))?;
    let deeper = forest.fork(mended, None, None)?;
    forest.append(deeper, NewNode::observation(vec![3]))?;
    let cut = forest.fork_many(trunk, Some(action), Some(1), &untrained)?[0];
    for (trajectory, token) in [(deeper, 9), (cut, 7)] {
        forest.append(trajectory, NewNode::action(vec![token], vec![-0.5]))?;
    }
    for trajectory in [trunk, mended, deeper, cut] {
        forest.finish(trajectory, Finish::default())?;
    }
    let batch = forest.freeze()?;
    // The trunk; the fork inside its action, which has the action as its own; the mended branch; and the fork of that.
    assert_eq!(tokens(&batch), [4, 5, 6, 7, 4, 7, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9]);
    assert_eq!(trainable(&batch), [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
    let flags = column::<UInt32Type>(batch.steps(), "flags");
    assert_eq!(flags.iter().filter(|&&flags| flags == Some(FLAG_UNTRAINED)).count(), 1);
    Ok(())
}

#[test]
fn untrained_prefixes_are_ordered_by_what_they_leave_out() -> Result<()> {
    let frozen = |swapped: bool| -> Result<Batch> {
        let (mut forest, trunk, _, _) = small();
        forest.step(trunk, &StepOutcome::default())?;
        for train_prefix in [swapped, !swapped] {
            let branch = forest.fork_many(trunk, None, None, &Fork { train_prefix, ..Fork::default() })?[0];
            forest.append(branch, NewNode::action(vec![8], vec![-0.5]))?;
            forest.finish(branch, Finish::default())?;
        }
        forest.abort();
        forest.freeze()
    };
    assert_eq!(without_time(&frozen(true)?), without_time(&frozen(false)?));
    Ok(())
}

#[test]
fn a_look_is_what_a_partial_freeze_would_give_and_changes_nothing() -> Result<()> {
    let mut forest = Forest::new(3, 1);
    forest.add_group(0, "other")?;
    forest.add_group(1, "task")?;
    grown(&mut forest, 0);
    let (first, second) = grown(&mut forest, 1);
    let branch = forest.fork_many(first, None, None, &forks(1, Some(4)))?[0];
    let early = forest.start(1, 7)?;
    forest.finish(second, Finish { reward: Some(1.0), ..Finish::default() })?;
    let (batch, handles) = forest.snapshot(1)?;
    assert_eq!(batch.num_draws(), 1);
    assert_eq!(handles, [first, branch, second], "one that has no token has no row");
    assert_eq!(column::<UInt8Type>(batch.trajectories(), "status"), [Some(5), Some(5), Some(0)]);
    for (row, &trajectory) in handles.iter().enumerate() {
        assert_eq!(paths(&batch)[&(row as i64)], forest.tokens(trajectory)?);
    }
    assert_eq!(without_time(&forest.snapshot(1)?.0), without_time(&batch), "a snapshot changes nothing");
    assert!(message(forest.snapshot(2)).contains("group 2 is not in the forest"));
    let seed = forest.segment_seed(first)?;
    acted(&mut forest, early, 5, 0.0);
    assert_eq!(forest.segment_seed(first)?, seed);
    for trajectory in [first, branch, early] {
        forest.finish(trajectory, Finish::default())?;
    }
    let whole = forest.snapshot(1)?.0;
    forest.abort();
    let mut alone = forest.clone();
    alone.groups.retain(|_, group| group.number == 1);
    alone.order.retain(|_, key| alone.groups.contains_key(key));
    assert_eq!(without_time(&alone.freeze()?), without_time(&whole));
    Ok(())
}

#[test]
fn a_look_knows_adopted_rows_by_their_handles() -> Result<()> {
    let mut first = Forest::new(0, 0);
    first.add_group(0, "task")?;
    grown(&mut first, 0);
    first.abort();
    let stored = first.freeze()?;
    let mut forest = Forest::new(1, 0);
    forest.add_group(0, "task")?;
    let own = forest.start(0, 0)?;
    acted(&mut forest, own, 30, 0.0);
    let (second, one) = (forest.adopt(0, &stored, 1, None)?, forest.adopt(0, &stored, 0, None)?);
    let branch = forest.fork(one, None, None)?;
    let (batch, handles) = forest.snapshot(0)?;
    assert_eq!(column::<Int64Type>(batch.trajectories(), "trajectory_id"), [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(handles, [one, second, branch, own]);
    Ok(())
}

#[test]
fn actions_are_moved_after_another_prompt() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let plain = forest.start(0, 0)?;
    forest.append(plain, NewNode::prompt(vec![1, 2]))?;
    acted(&mut forest, plain, 40, 0.0);
    forest.finish(plain, Finish::default())?;
    let shown = forest.start(0, 1)?;
    forest.append(shown, NewNode { state: Some(b"door".to_vec()), ..NewNode::prompt(vec![7, 7, 7, 1, 2]) })?;
    acted(&mut forest, shown, 10, 0.5);
    forest.append(shown, NewNode { state: Some(b"room".to_vec()), ..NewNode::observation(vec![3]) })?;
    forest.append(shown, NewNode::action(vec![20], vec![-0.5]))?;
    forest.append(shown, NewNode::action(vec![21], vec![-0.5]))?;
    forest.step(shown, &StepOutcome { reward: Some(1.0), terminated: true, ..StepOutcome::default() })?;
    forest.finish(shown, Finish { reward: Some(1.0), ..Finish::default() })?;
    let plain = forest.with_prompt(shown, vec![1, 2], vec![], None)?;
    assert_eq!(forest.tokens(plain)?, [1, 2, 10, 11, 3, 20, 21]);
    forest.finish(plain, Finish { reward: Some(1.0), ..Finish::default() })?;
    let elsewhere = forest.with_prompt(shown, vec![1, 2], vec![], Some(b"hall"))?;
    forest.finish(elsewhere, Finish { status: Status::Aborted, ..Finish::default() })?;
    let batch = forest.freeze()?;
    assert_eq!(tokens(&batch), [40, 41, 10, 11, 20, 21, 10, 11, 20, 21]);
    assert_eq!(batch.column("position", Level::Token)?, Numbers::I32(vec![2, 3, 5, 6, 8, 9, 2, 3, 5, 6]));
    let Numbers::F32(rewards) = batch.column("reward", Level::Step)? else { panic!("rewards are f32") };
    assert_eq!(rewards, [0.0, 0.5, 1.0, 0.5, 1.0]);
    let keys = batch.keys("state_key", Level::Step)?;
    assert_eq!((keys[1], keys[2]), (keys[3], keys[4]), "the states are those that were acted on");
    assert_ne!(keys[1], keys[0], "not that of the prompt");
    let prompts = column::<UInt8Type>(batch.nodes(), "kind").iter().filter(|&&kind| kind == Some(0)).count();
    assert_eq!(prompts, 2, "the plain prompt is there once");
    let old = column::<UInt8Type>(batch.draws(), "old_logprob");
    assert_eq!(old, [OldLogprob::Behaviour, OldLogprob::Behaviour, OldLogprob::None].map(|known| Some(known as u8)));
    let (parents, branches) = (
        column::<Int64Type>(batch.trajectories(), "parent_trajectory"),
        column::<Int64Type>(batch.trajectories(), "branch_node"),
    );
    assert_eq!(parents, [None, None, Some(1), Some(1)]);
    assert_eq!(branches, [None; 4]);
    let first = |row: usize| batch.steps()["state_key"].as_fixed_size_binary().value(row).to_vec();
    assert_eq!(column::<Float32Type>(batch.steps(), "reward").len(), 7);
    assert!((0..7).any(|row| first(row) == hash_bytes(b"hall")), "a state that is given counts");
    Ok(())
}

#[test]
fn a_trajectory_without_action_or_single_prompt_is_not_moved_after_another() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let (first, second) = grown(&mut forest, 0);
    let silent = forest.start(0, 9)?;
    forest.append(silent, NewNode::prompt(vec![1]))?;
    assert!(message(forest.with_prompt(silent, vec![5], vec![], None)).contains("has no action"));
    assert!(message(forest.with_prompt(first, vec![], vec![], None)).contains("tokens is empty"));
    assert!(message(forest.with_prompt(first, vec![-4], vec![], None)).contains("tokens[0] is -4"));
    forest.rewrite(second, &[1, 9], &[], None)?;
    assert!(message(forest.with_prompt(second, vec![5], vec![], None)).contains("was rewritten"));
    assert_eq!(forest.frontier(None)?.trajectory.len(), 3, "nothing was begun");
    // An open action continues.
    forest.append(first, NewNode::action(vec![22], vec![-0.5]))?;
    let plain = forest.with_prompt(first, vec![5], vec![], None)?;
    forest.append(plain, NewNode::action(vec![23], vec![-0.5]))?;
    forest.finish(plain, Finish::default())?;
    forest.abort();
    let batch = forest.freeze()?;
    assert_eq!(tokens(&batch), [10, 11, 20, 21, 22, 23]);
    assert_eq!(batch.offsets(Level::Step)?, [0, 3]);
    Ok(())
}
