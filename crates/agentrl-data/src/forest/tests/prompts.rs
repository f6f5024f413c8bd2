//! Tests of shared beginnings of prompts, which are stored once.

use std::collections::BTreeSet;

use super::*;
use crate::schema::{Operation, Source};

/// Freeze a group whose members get prompts, each in several pieces, and answer. Members arrive in `order`.
fn members(prompts: &[Vec<Vec<i32>>], order: &[usize]) -> Result<Batch> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    for &member in order {
        let trajectory = forest.start(0, member as u32)?;
        for piece in &prompts[member] {
            forest.append(trajectory, NewNode::prompt(piece.clone()))?;
        }
        forest.append(trajectory, NewNode::action(vec![50 + member as i32], vec![-1.0]))?;
        forest.finish(trajectory, Finish::default())?;
    }
    forest.freeze()
}

/// A node: its parent, the number of the parent's tokens before it, its start and its tokens.
type Row = (Option<i64>, Option<i32>, i32, Vec<i32>);

fn rows(batch: &Batch) -> Vec<Row> {
    let nodes = batch.nodes();
    let parents = nodes["parent_id"].as_primitive::<Int64Type>().iter();
    let ends = nodes["parent_end"].as_primitive::<Int32Type>().iter();
    let starts = nodes["start"].as_primitive::<Int32Type>().values().iter().copied();
    let tokens = nodes["tokens"].as_list::<i32>().iter().flatten();
    let tokens = tokens.map(|tokens| tokens.as_primitive::<Int32Type>().values().to_vec());
    parents.zip(ends).zip(starts.zip(tokens)).map(|((parent, end), (start, own))| (parent, end, start, own)).collect()
}

#[test]
fn a_prompt_holds_what_no_earlier_one_begins_with() -> Result<()> {
    // The second leaves the first after two tokens, the third ends inside the first, the fourth continues the second.
    let prompts = [vec![vec![1, 2, 3]], vec![vec![1, 2], vec![4]], vec![vec![1, 2]], vec![vec![1, 2, 4, 5]]];
    let batch = members(&prompts, &[0, 1, 2, 3])?;
    let expected = [
        (None, None, 0, vec![1, 2, 3]),
        (Some(0), None, 3, vec![50]),
        (Some(0), Some(2), 2, vec![4]),
        (Some(2), None, 3, vec![51]),
        (Some(0), Some(2), 2, vec![52]),
        (Some(2), None, 3, vec![5]),
        (Some(5), None, 4, vec![53]),
    ];
    assert_eq!(rows(&batch), expected);
    Ok(())
}

#[test]
fn actions_images_and_stored_nodes_are_never_shared() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let blob = forest.add_blob(b"image")?;
    let shown = NewNode { blobs: vec![blob], ..NewNode::prompt(vec![1, 2, 8]) };
    let prompts = [NewNode::prompt(vec![1, 2]), NewNode::prompt(vec![1, 2, 50, 3]), shown];
    for (member, prompt) in (0..).zip(prompts) {
        let trajectory = forest.start(0, member)?;
        forest.append(trajectory, prompt)?;
        forest.append(trajectory, NewNode::action(vec![50], vec![-1.0]))?;
        forest.finish(trajectory, Finish::default())?;
    }
    let expected = [
        (None, None, 0, vec![1, 2]),
        (Some(0), None, 2, vec![50]),
        (Some(0), None, 2, vec![50, 3]),
        (Some(2), None, 4, vec![50]),
        (None, None, 0, vec![1, 2, 8]),
        (Some(4), None, 3, vec![50]),
    ];
    assert_eq!(rows(&forest.freeze()?), expected);
    Ok(())
}

#[test]
fn places_inside_a_shared_prompt_are_those_of_the_row_that_holds_them() -> Result<()> {
    let mut forest = Forest::new(0, 0);
    forest.add_group(0, "task")?;
    let (first, second) = (forest.start(0, 0)?, forest.start(0, 1)?);
    forest.append(first, NewNode::prompt(vec![1, 2, 3]))?;
    let prompt = forest.append(second, NewNode::prompt(vec![1, 2, 4, 5]))?;
    let mut results = Vec::new();
    for end in [0, 1, 3] {
        results.push(forest.fork(second, Some(prompt), Some(end))?);
        let node = Some(prompt);
        forest.decide(Decision { node, end: Some(end), ..Decision::new(Operation::Fork, second, end) })?;
    }
    forest.decide(Decision { node: Some(prompt), ..Decision::new(Operation::Stop, second, 9) })?;
    for (token, trajectory) in (20..).zip([first, second].into_iter().chain(results)) {
        forest.append(trajectory, NewNode::action(vec![token], vec![-1.0]))?;
    }
    forest.abort();
    let batch = forest.freeze()?;
    let [root, rest] = [vec![1, 2, 3], vec![4, 5]]
        .map(|tokens| rows(&batch).iter().position(|(_, _, _, own)| *own == tokens).map(|row| row as i64));
    let ids = |table: &RecordBatch, name: &str| table[name].as_primitive::<Int64Type>().iter().collect::<Vec<_>>();
    let ends = |table: &RecordBatch, name: &str| table[name].as_primitive::<Int32Type>().iter().collect::<Vec<_>>();
    let decisions = batch.table(Table::Decisions);
    assert_eq!(ids(decisions, "node_id"), [root, root, rest, rest]);
    assert_eq!(ends(decisions, "end"), [Some(0), Some(1), Some(1), None]);
    let trajectories = batch.trajectories();
    let branches = ids(trajectories, "branch_node").into_iter().zip(ends(trajectories, "branch_end"));
    let branches: BTreeSet<_> = branches.collect();
    assert_eq!(branches, BTreeSet::from([(None, None), (root, Some(1)), (rest, Some(1))]));
    Ok(())
}

proptest! {
    /// For any order of arrival, the rows are the trie of all prompts, and adopted members continue from them.
    #[test]
    fn stored_prompts_are_their_trie(
        prompts in prop::collection::vec(prop::collection::vec(prop::collection::vec(0..2, 1..4), 1..4), 1..6),
        keys in prop::collection::vec(any::<u16>(), 6),
    ) {
        let mut order: Vec<usize> = (0..prompts.len()).collect();
        let batch = members(&prompts, &order)?;
        order.sort_by_key(|&member| keys[member]);
        prop_assert_eq!(without_time(&batch), without_time(&members(&prompts, &order)?));
        let whole: Vec<Vec<i32>> = prompts.iter().map(|pieces| pieces.concat()).collect();
        let found: Vec<Vec<i32>> = paths(&batch).into_values().collect();
        let expected: Vec<Vec<i32>> = (50..).zip(&whole).map(|(token, prompt)| [prompt.as_slice(), &[token]].concat()).collect();
        prop_assert_eq!(found, expected);
        let trie: BTreeSet<&[i32]> = whole.iter().flat_map(|prompt| (1..=prompt.len()).map(|end| &prompt[..end])).collect();
        let stored: usize = rows(&batch).iter().map(|(_, _, _, own)| own.len()).sum();
        prop_assert_eq!(stored, trie.len() + prompts.len());

        // Each member continues after its prompt, in the state that it acted on, whichever row holds the tokens.
        let mut later = Forest::new(1, 0);
        later.add_group(0, "task")?;
        for &member in &order {
            let adopted = later.adopt(0, &batch, member as i64, Some(Source::Replay))?;
            prop_assert_eq!(later.tokens(adopted)?, [whole[member].as_slice(), &[50 + member as i32]].concat());
            let group = later.group(adopted)?;
            let step = group.step(split(adopted).1, 0).unwrap().clone();
            let (node, end) = group.nodes[step.first_node].parent.unwrap();
            let again = later.fork(adopted, Some(handle(later.of_number(0)?.key, node)), Some(end))?;
            prop_assert_eq!(later.tokens(again)?, whole[member].as_slice());
            prop_assert_eq!(later.group(again)?.state_key(split(again).1), step.state_key);
            later.append(again, NewNode::action(vec![90], vec![-1.0]))?;
            later.finish(again, Finish::default())?;
        }
    }
}
