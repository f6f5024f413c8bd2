mod equal_forks;
mod handles;
mod operations;
mod program_operations;
mod prompts;
mod random_programs;
mod token_columns;

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, UInt8Type};
use arrow_array::{Array, RecordBatch};
use proptest::prelude::*;

use super::*;
use crate::batch::{Batch, Level, Numbers, PlanOptions};
use crate::schema::Table;

/// Return the path of each trajectory by its id, read from the tables without any code of the batch.
fn paths(batch: &Batch) -> BTreeMap<i64, Vec<i32>> {
    let (nodes, trajectories) = (batch.nodes(), batch.trajectories());
    let i64s = |rows: &RecordBatch, name: &str| rows[name].as_primitive::<Int64Type>().clone();
    let i32s = |rows: &RecordBatch, name: &str| rows[name].as_primitive::<Int32Type>().clone();
    let (ids, parents, ends) = (i64s(nodes, "node_id"), i64s(nodes, "parent_id"), i32s(nodes, "parent_end"));
    let (starts, tokens) = (i32s(nodes, "start"), nodes["tokens"].as_list::<i32>());
    let row_of: BTreeMap<i64, usize> = ids.values().iter().enumerate().map(|(row, &id)| (id, row)).collect();
    let mut found = BTreeMap::new();
    for row in 0..trajectories.num_rows() {
        let leaf = i64s(trajectories, "leaf_node_id").value(row);
        let end = i32s(trajectories, "leaf_end");
        let mut cut = (!end.is_null(row)).then(|| end.value(row) as usize);
        let mut path: Vec<i32> = Vec::new();
        let mut node = Some(leaf);
        while let Some(id) = node {
            let row = row_of[&id];
            let values = tokens.value(row);
            let values = values.as_primitive::<Int32Type>().values();
            let used = &values[..cut.unwrap_or(values.len())];
            path.splice(0..0, used.iter().copied());
            node = (!parents.is_null(row)).then(|| parents.value(row));
            cut = (!ends.is_null(row)).then(|| ends.value(row) as usize);
            let length: usize = path.len() - used.len();
            assert_eq!(starts.value(row) as usize + used.len() + length, starts.value(row) as usize + path.len());
        }
        found.insert(i64s(trajectories, "trajectory_id").value(row), path);
    }
    found
}

fn without_time(batch: &Batch) -> Vec<RecordBatch> {
    let cut = |rows: &RecordBatch| {
        let columns: Vec<usize> =
            (0..rows.num_columns()).filter(|&index| rows.schema().field(index).name() != "created_us").collect();
        rows.project(&columns).unwrap()
    };
    Table::ALL.iter().map(|&table| cut(batch.table(table))).collect()
}

fn small() -> (Forest, Handle, Handle, Handle) {
    let mut forest = Forest::new(3, 11);
    forest.add_group(0, "task").unwrap();
    let trajectory = forest.start(0, 0).unwrap();
    let prompt = forest.append(trajectory, NewNode::prompt(vec![1, 2, 3])).unwrap();
    let action = forest.append(trajectory, NewNode::action(vec![4, 5, 6, 7], vec![-0.1, -0.2, -0.3, -0.4])).unwrap();
    (forest, trajectory, prompt, action)
}

#[test]
fn a_fork_inside_an_action_shares_its_tokens_and_cuts_no_node() {
    let (mut forest, trunk, _, action) = small();
    let branch = forest.fork(trunk, Some(action), Some(2)).unwrap();
    forest.append(branch, NewNode::action(vec![8], vec![-0.7])).unwrap();
    forest.step(branch, &StepOutcome { reward: Some(1.0), ..StepOutcome::default() }).unwrap();
    forest.finish(branch, Finish::default()).unwrap();
    forest.step(trunk, &StepOutcome::default()).unwrap();
    forest.finish(trunk, Finish::default()).unwrap();
    let batch = forest.freeze().unwrap();
    assert!(forest.is_empty());
    assert_eq!(batch.nodes().num_rows(), 3);
    assert_eq!(paths(&batch), BTreeMap::from([(0, vec![1, 2, 3, 4, 5, 6, 7]), (1, vec![1, 2, 3, 4, 5, 8])]));
    // The branch's action begins in the shared node: two inherited tokens and one of its own.
    assert_eq!(batch.column("token", Level::Token).unwrap(), Numbers::I32(vec![4, 5, 6, 7, 4, 5, 8]));
    assert_eq!(
        batch.column("behaviour_logprob", Level::Token).unwrap(),
        Numbers::F32(vec![-0.1, -0.2, -0.3, -0.4, -0.1, -0.2, -0.7])
    );
    assert_eq!(batch.column("position", Level::Token).unwrap(), Numbers::I32(vec![3, 4, 5, 6, 3, 4, 5]));
}

#[test]
fn a_fork_after_a_step_inherits_it() {
    let (mut forest, trunk, _, _) = small();
    forest.step(trunk, &StepOutcome { reward: Some(0.5), ..StepOutcome::default() }).unwrap();
    let result = forest.append(trunk, NewNode::observation(vec![9])).unwrap();
    let branch = forest.fork(trunk, Some(result), None).unwrap();
    for (trajectory, token) in [(trunk, 10), (branch, 11)] {
        forest.append(trajectory, NewNode::action(vec![token], vec![-1.0])).unwrap();
        forest.step(trajectory, &StepOutcome::default()).unwrap();
        forest.finish(trajectory, Finish::default()).unwrap();
    }
    let batch = forest.freeze().unwrap();
    let origins = batch.steps()["origin_trajectory_id"].as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(origins, [0, 0, 0, 1]);
    assert_eq!(batch.keys("state_key", Level::Step).unwrap(), [0, 1, 0, 1]);
    let Numbers::F32(rewards) = batch.column("reward", Level::Step).unwrap() else { panic!("rewards are f32") };
    assert_eq!(rewards.iter().map(|reward| reward.is_nan()).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!([rewards[0].to_bits(), rewards[2].to_bits()], [0.5_f32.to_bits(); 2]);
}

#[test]
fn pruned_and_aborted_trajectories_are_kept_but_not_drawn() {
    let (mut forest, trunk, _, _) = small();
    let branch = forest.fork(trunk, None, None).unwrap();
    forest.prune(branch, "too \"slow\"", false).unwrap();
    let other = forest.start(0, 1).unwrap();
    forest.append(other, NewNode::prompt(vec![1])).unwrap();
    forest.step(trunk, &StepOutcome::default()).unwrap();
    forest.finish(trunk, Finish::default()).unwrap();
    assert_eq!(forest.freeze().unwrap().num_draws(), 0, "a live group stays");
    forest.abort();
    let batch = forest.freeze().unwrap();
    assert_eq!(batch.trajectories().num_rows(), 3);
    assert_eq!(batch.num_draws(), 1);
    assert_eq!(batch.trajectories()["status"].as_primitive::<UInt8Type>().values().to_vec(), [0, 3, 2]);
    assert_eq!(batch.trajectories()["info"].as_string::<i32>().value(1), r#"{"pruned":"too \"slow\"","info":null}"#);
}

#[test]
fn invalid_calls_are_reported() {
    let (mut forest, trunk, prompt, action) = small();
    let message = |result: Result<()>| result.unwrap_err().to_string();
    let sampled = |temperature, top_p, top_k| {
        let sampling = Some(Sampling { temperature, top_p, top_k });
        NewNode { sampling, ..NewNode::action(vec![1], vec![-1.0]) }
    };
    let bad = [
        (NewNode::action(vec![], vec![]), "tokens is empty; give an action at least one token"),
        (NewNode::action(vec![1], vec![]), "logprobs has 0 values for 1 tokens"),
        (NewNode::action(vec![1], vec![f32::NAN]), "logprobs[0] is NaN"),
        (NewNode::action(vec![1], vec![0.5]), "logprobs[0] is 0.5"),
        (NewNode::action(vec![1], vec![f32::NEG_INFINITY]), "logprobs[0] is -inf"),
        (NewNode::prompt(vec![-4]), "tokens[0] is -4"),
        (NewNode { logprobs: Some(vec![-1.0]), ..NewNode::prompt(vec![1]) }, "only an action has log-probs"),
        (NewNode { trainable: Some(vec![1]), ..NewNode::prompt(vec![1]) }, "only an action can be trained"),
        (NewNode { trainable: Some(vec![2]), ..NewNode::action(vec![1], vec![-1.0]) }, "trainable[0] is 2"),
        (NewNode { entropies: Some(vec![f32::INFINITY]), ..NewNode::prompt(vec![1]) }, "entropies[0] is inf"),
        (sampled(f32::NAN, 1.0, 0), "temperature is NaN"),
        (sampled(-1.0, 1.0, 0), "temperature is -1"),
        (sampled(1.0, 0.0, 0), "top_p is 0"),
        (sampled(1.0, 1.0, -1), "top_k is -1"),
    ];
    for (node, expected) in bad {
        let found = message(forest.append(trunk, node).map(drop));
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
    for unusable in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 3.0] {
        let masked = NewNode { trainable: Some(vec![0, 1]), ..NewNode::action(vec![1, 2], vec![unusable, -1.0]) };
        assert!(masked.check().is_ok(), "the log-prob {unusable} of a token that is not trained is not read");
        assert!(masked.is_same(&masked.clone()));
    }
    let before = forest.tokens(trunk).unwrap();
    assert_eq!(before, [1, 2, 3, 4, 5, 6, 7], "a refused node leaves nothing behind");
    assert!(message(forest.fork(trunk, Some(action), Some(5)).map(drop)).contains("end is 5"));
    assert!(message(forest.fork(trunk, Some(99), None).map(drop)).contains("node 99 is not on the path"));
    assert!(message(forest.fork(trunk, None, Some(1)).map(drop)).contains("end is given without node"));
    assert!(
        message(forest.append(77, NewNode::prompt(vec![1])).map(drop)).contains("trajectory 77 is not in the forest")
    );
    assert!(message(forest.start(5, 0).map(drop)).contains("group 5"));
    assert!(message(forest.start(0, 0).map(drop)).contains("member 0 of group 0"));
    assert!(message(forest.add_group(0, "x")).contains("group 0 exists"));
    let infinite = StepOutcome { reward: Some(f32::INFINITY), ..StepOutcome::default() };
    assert!(message(forest.step(trunk, &infinite)).contains("reward is inf"));
    forest.step(trunk, &StepOutcome::default()).unwrap();
    assert!(message(forest.step(trunk, &StepOutcome::default())).contains("no open action"));
    let fresh = forest.fork(trunk, Some(prompt), None).unwrap();
    assert!(message(forest.finish(fresh, Finish::default())).contains("without an action"));
    forest.finish(trunk, Finish::default()).unwrap();
    assert!(message(forest.append(trunk, NewNode::prompt(vec![1])).map(drop)).contains("has ended"));
}

#[test]
fn a_fork_before_the_first_token_is_another_root() {
    let (mut forest, trunk, prompt, _) = small();
    let other = forest.fork(trunk, Some(prompt), Some(0)).unwrap();
    forest.append(other, NewNode::prompt(vec![9])).unwrap();
    forest.abort();
    let batch = forest.freeze().unwrap();
    assert_eq!(paths(&batch), BTreeMap::from([(0, vec![1, 2, 3, 4, 5, 6, 7]), (1, vec![9])]));
    assert_eq!(batch.nodes()["parent_id"].null_count(), 2);
}

#[test]
fn members_that_begin_alike_share_their_prompt() {
    let build = |order: [u32; 3]| {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task").unwrap();
        for member in order {
            let trajectory = forest.start(0, member).unwrap();
            let prompt = if member == 2 { vec![1, 3] } else { vec![1, 2] };
            forest.append(trajectory, NewNode::prompt(prompt)).unwrap();
            forest.append(trajectory, NewNode::action(vec![5 + member as i32], vec![-1.0])).unwrap();
            forest.finish(trajectory, Finish::default()).unwrap();
        }
        forest.freeze().unwrap()
    };
    let batch = build([0, 1, 2]);
    assert_eq!(batch.nodes().num_rows(), 5, "two prompts and three actions");
    assert_eq!(paths(&batch), BTreeMap::from([(0, vec![1, 2, 5]), (1, vec![1, 2, 6]), (2, vec![1, 3, 7])]));
    assert_eq!(without_time(&batch), without_time(&build([2, 1, 0])));
}

#[test]
fn trajectories_without_tokens_leave_no_rows() {
    let (mut forest, trunk, prompt, _) = small();
    forest.add_group(1, "not begun").unwrap();
    let interrupted = forest.start(0, 1).unwrap();
    let before_all = forest.fork(trunk, Some(prompt), Some(0)).unwrap();
    let child = forest.fork(before_all, None, None).unwrap();
    forest.append(child, NewNode::prompt(vec![9])).unwrap();
    forest.prune(interrupted, "never used", false).unwrap();
    forest.abort();
    let batch = forest.freeze().unwrap();
    assert_eq!(paths(&batch), BTreeMap::from([(0, vec![1, 2, 3, 4, 5, 6, 7]), (1, vec![9])]));
    assert_eq!(batch.trajectories()["parent_trajectory"].null_count(), 2, "its parent has no row");
    assert_eq!(forest.len(), 1, "a group that has not begun stays");
    forest.start(1, 0).unwrap();
}

#[test]
fn prompts_that_differ_in_anything_are_not_shared() {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task").unwrap();
    for (member, version) in [(0, 1), (1, 2), (2, 1)] {
        let trajectory = forest.start(0, member).unwrap();
        let prompt = NewNode { policy_version: Some(version), ..NewNode::prompt(vec![1, 2]) };
        forest.append(trajectory, prompt).unwrap();
    }
    forest.abort();
    assert_eq!(forest.freeze().unwrap().nodes().num_rows(), 2);
}

/// An operation on one of the trajectories of a group.
#[derive(Clone, Debug)]
enum Operation {
    Append(u8, u8),
    Observe(u8),
    Fork(prop::sample::Index),
    Prune,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1..6_u8, any::<u8>()).prop_map(|(count, seed)| Operation::Append(count, seed)),
        2 => (1..4_u8).prop_map(Operation::Observe),
        2 => any::<prop::sample::Index>().prop_map(Operation::Fork),
        1 => Just(Operation::Prune),
    ]
}

/// A trajectory: its handle, and its path and nodes in the model.
struct Player {
    handle: Handle,
    path: Vec<i32>,
    nodes: Vec<(Handle, usize, usize)>,
    pruned: bool,
}

/// Play the operations of each group, in the order of `schedule`, and apply them to a model of lists of lists.
fn play(
    scripts: &[Vec<(prop::sample::Index, Operation)>],
    schedule: &[prop::sample::Index],
) -> (Batch, Vec<Vec<Vec<i32>>>) {
    let mut forest = Forest::new(1, 2);
    let mut groups: Vec<Vec<Player>> = Vec::new();
    for number in 0..scripts.len() {
        forest.add_group(number as u32, &format!("task-{number}")).unwrap();
        let handle = forest.start(number as u32, 0).unwrap();
        let node = forest.append(handle, NewNode::prompt(vec![1, 2])).unwrap();
        groups.push(vec![Player { handle, path: vec![1, 2], nodes: vec![(node, 0, 2)], pruned: false }]);
    }
    let mut positions = vec![0; scripts.len()];
    let mut turn = 0;
    while positions.iter().zip(scripts).any(|(&position, script)| position < script.len()) {
        let open: Vec<usize> = (0..scripts.len()).filter(|&group| positions[group] < scripts[group].len()).collect();
        let group = open[schedule.get(turn % schedule.len().max(1)).map_or(0, |index| index.index(open.len()))];
        turn += 1;
        let (who, operation) = &scripts[group][positions[group]];
        positions[group] += 1;
        let players = &mut groups[group];
        let who = who.index(players.len());
        let player = &mut players[who];
        if player.pruned {
            continue;
        }
        let length = player.path.len();
        match operation {
            Operation::Append(count, seed) => {
                let tokens: Vec<i32> = (0..i32::from(*count)).map(|token| token * 7 + i32::from(*seed)).collect();
                let node = NewNode::action(tokens.clone(), vec![-0.5; tokens.len()]);
                let node = forest.append(player.handle, node).unwrap();
                player.nodes.push((node, length, length + tokens.len()));
                player.path.extend(tokens);
            }
            Operation::Observe(count) => {
                let tokens = vec![3; usize::from(*count)];
                let node = forest.append(player.handle, NewNode::observation(tokens.clone())).unwrap();
                player.nodes.push((node, length, length + tokens.len()));
                player.path.extend(tokens);
            }
            Operation::Fork(at) => {
                let cut = 1 + at.index(length);
                let &(node, start, _) =
                    player.nodes.iter().find(|&&(_, start, end)| start <= cut && cut <= end).unwrap();
                let handle = forest.fork(player.handle, Some(node), Some((cut - start) as u32)).unwrap();
                let mut nodes: Vec<_> = player.nodes.iter().copied().filter(|&(_, start, _)| start < cut).collect();
                if let Some(last) = nodes.last_mut() {
                    last.2 = cut;
                }
                let path = player.path[..cut].to_vec();
                assert_eq!(forest.tokens(handle).unwrap(), path);
                players.push(Player { handle, path, nodes, pruned: false });
            }
            Operation::Prune => {
                if who != 0 {
                    forest.prune(player.handle, "test", false).unwrap();
                    player.pruned = true;
                }
            }
        }
    }
    forest.abort();
    let paths = |players: Vec<Player>| players.into_iter().map(|player| player.path).collect();
    (forest.freeze().unwrap(), groups.into_iter().map(paths).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn paths_equal_a_list_of_lists_and_no_interleaving_matters(
        scripts in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), operation()), 0..25), 1..4),
        schedule in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
    ) {
        let (batch, model) = play(&scripts, &schedule);
        let mut expected: Vec<Vec<i32>> = model.into_iter().flatten().collect();
        let mut found: Vec<Vec<i32>> = paths(&batch).into_values().collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(&found, &expected);
        let (other, _) = play(&scripts, &[]);
        prop_assert_eq!(without_time(&batch), without_time(&other));
        let stored: usize = batch.nodes()["tokens"].as_list::<i32>().values().len();
        prop_assert!(stored <= expected.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn action_tokens_are_those_of_the_path(
        script in prop::collection::vec((any::<prop::sample::Index>(), operation()), 0..25),
    ) {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task").unwrap();
        let root = forest.start(0, 0).unwrap();
        forest.append(root, NewNode::prompt(vec![1])).unwrap();
        let mut live = vec![root];
        for (who, operation) in &script {
            let who = live[who.index(live.len())];
            match operation {
                Operation::Append(count, seed) => {
                    let tokens = vec![100 + i32::from(*seed); usize::from(*count)];
                    forest.append(who, NewNode::action(tokens.clone(), vec![-1.0; tokens.len()])).unwrap();
                }
                Operation::Observe(_) | Operation::Prune => { forest.append(who, NewNode::observation(vec![2])).unwrap(); }
                Operation::Fork(_) => live.push(forest.fork(who, None, None).unwrap()),
            }
        }
        for &trajectory in &live {
            // Every trajectory ends with an action, so that every sampled token belongs to a closed step.
            forest.append(trajectory, NewNode::action(vec![99], vec![-1.0])).unwrap();
            forest.finish(trajectory, Finish::default()).unwrap();
        }
        let batch = forest.freeze().unwrap();
        let Numbers::I32(tokens) = batch.column("token", Level::Token).unwrap() else { panic!("tokens are i32") };
        let (steps, offsets) = (batch.offsets(Level::Step).unwrap(), batch.offsets(Level::Token).unwrap());
        let paths: Vec<Vec<i32>> = paths(&batch).into_values().collect();
        prop_assert_eq!(paths.len(), live.len());
        for (draw, path) in paths.iter().enumerate() {
            let from = offsets[steps[draw] as usize] as usize;
            let to = offsets[steps[draw + 1] as usize] as usize;
            let expected: Vec<i32> = path.iter().copied().filter(|&token| token >= 99).collect();
            prop_assert_eq!(&tokens[from..to], expected.as_slice());
        }
    }
}
