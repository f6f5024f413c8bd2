use std::collections::BTreeSet;

use agentrl_compute::prefix::common_prefix;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{Array, RecordBatch};
use proptest::prelude::*;

use super::*;
use crate::batch::Batch;
use crate::forest::Finish;
use crate::forest::node::Node;
use crate::schema::Status;

const REALIGN: usize = 2;

/// A ragged column: rows of different lengths.
#[derive(Clone, Debug, Default)]
struct Lists<T> {
    values: Vec<T>,
    offsets: Vec<i64>,
}

impl<T: Copy> Lists<T> {
    fn new(rows: &[Vec<T>]) -> Self {
        let mut offsets = vec![0];
        offsets.extend(rows.iter().scan(0, |end, row| {
            *end += row.len() as i64;
            Some(*end)
        }));
        Self { values: rows.concat(), offsets }
    }

    fn rows(&self) -> Result<Ragged<'_, T>> {
        Ragged::new(&self.values, &self.offsets)
    }
}

type Turn = (Vec<i32>, Vec<i32>);

fn logprobs(output: &[i32]) -> Vec<f32> {
    output.iter().enumerate().map(|(at, &token)| -0.5 - (token as f32) - at as f32 / 64.0).collect()
}

fn ingest(forest: &mut Forest, turns: &[(Handle, Turn)]) -> Result<Ingested> {
    ingest_without(forest, turns, None)
}

/// Ingest turns whose contexts are given without their first `known` tokens.
fn ingest_without(forest: &mut Forest, turns: &[(Handle, Turn)], known: Option<&[i64]>) -> Result<Ingested> {
    let trajectories: Vec<Handle> = turns.iter().map(|&(trajectory, _)| trajectory).collect();
    let rest = |(row, (_, (prompt, _))): (usize, &(Handle, Turn))| {
        let known = known.and_then(|known| usize::try_from(known[row]).ok()).unwrap_or_default();
        prompt.get(known..).unwrap_or_default().to_vec()
    };
    let prompts = Lists::new(&turns.iter().enumerate().map(rest).collect::<Vec<_>>());
    let outputs = Lists::new(&turns.iter().map(|(_, (_, output))| output.clone()).collect::<Vec<_>>());
    let sampled = Lists::new(&turns.iter().map(|(_, (_, output))| logprobs(output)).collect::<Vec<_>>());
    let outputs = Rows { logprobs: Some(sampled.rows()?), ..Rows::new(&trajectories, outputs.rows()?) };
    let turns = Turns { outputs, prompts: prompts.rows()?, known, images: None, realign: REALIGN, vocabulary: None };
    forest.ingest(&turns, &mut || Ok(()))
}

fn session() -> Result<(Forest, Handle)> {
    let mut forest = Forest::new(0, 1);
    forest.add_group(0, "task")?;
    let trajectory = forest.start(0, 0)?;
    Ok((forest, trajectory))
}

/// Return the tokens of a path that ends after some of a node's tokens, read from the table alone.
fn path(nodes: &RecordBatch, node: i64, end: Option<i32>) -> Vec<i32> {
    let ids = nodes["node_id"].as_primitive::<Int64Type>();
    let (parents, ends) =
        (nodes["parent_id"].as_primitive::<Int64Type>(), nodes["parent_end"].as_primitive::<Int32Type>());
    let mut pieces = Vec::new();
    let mut next = Some((node, end));
    while let Some((node, end)) = next {
        let Some(row) = ids.values().iter().position(|&id| id == node) else { return Vec::new() };
        let tokens = nodes["tokens"].as_list::<i32>().value(row);
        let tokens = tokens.as_primitive::<Int32Type>().values();
        pieces.push(tokens[..end.map_or(tokens.len(), |end| end as usize)].to_vec());
        let before = (!ends.is_null(row)).then(|| ends.value(row));
        next = (!parents.is_null(row)).then(|| (parents.value(row), before));
    }
    pieces.reverse();
    pieces.concat()
}

/// Return the context, action and log-probs of each step of a trajectory, read from the tables alone.
fn steps(batch: &Batch, trajectory: i64) -> Vec<(Vec<i32>, Vec<i32>, Vec<f32>)> {
    let (nodes, steps) = (batch.nodes(), batch.steps());
    let mut found = Vec::new();
    for step in 0..steps.num_rows() {
        if steps["trajectory_id"].as_primitive::<Int64Type>().value(step) != trajectory {
            continue;
        }
        let node = steps["node_id"].as_primitive::<Int64Type>().value(step);
        assert_eq!(steps["first_node_id"].as_primitive::<Int64Type>().value(step), node);
        let Some(row) = nodes["node_id"].as_primitive::<Int64Type>().values().iter().position(|&id| id == node) else {
            continue;
        };
        let whole = path(nodes, node, None);
        let start = nodes["start"].as_primitive::<Int32Type>().value(row) as usize;
        let logprobs = nodes["logprobs"].as_list::<i32>().value(row);
        let logprobs = logprobs.as_primitive::<Float32Type>().values().to_vec();
        found.push((whole[..start].to_vec(), whole[start..].to_vec(), logprobs));
    }
    found
}

fn names(ingested: &Ingested) -> Vec<(&'static str, i32)> {
    let names = ingested.drift.iter().map(|&code| Drift::NAMES[usize::from(code)]);
    names.zip(ingested.drift_at.iter().copied()).collect()
}

/// Kind, tokens and origin of each node.
fn stored(batch: &Batch) -> Vec<(u8, Vec<i32>, Option<i64>)> {
    let nodes = batch.nodes();
    let origins = nodes["origin_node_id"].as_primitive::<Int64Type>();
    let row = |row: usize| {
        let tokens = nodes["tokens"].as_list::<i32>().value(row);
        let tokens = tokens.as_primitive::<Int32Type>().values().to_vec();
        let origin = (!origins.is_null(row)).then(|| origins.value(row));
        (nodes["kind"].as_primitive::<UInt8Type>().value(row), tokens, origin)
    };
    (0..nodes.num_rows()).map(row).collect()
}

const PROMPT: u8 = Kind::Prompt as u8;
const ACTION: u8 = Kind::Action as u8;
const OBSERVATION: u8 = Kind::Observation as u8;
const INJECTED: u8 = Kind::Injected as u8;

#[test]
fn a_growing_chat_is_stored_once() -> Result<()> {
    let (mut forest, trajectory) = session()?;
    let first = ingest(&mut forest, &[(trajectory, (vec![1, 2], vec![3, 4]))])?;
    assert_eq!(names(&first), [("clean", -1)]);
    let rest = [(trajectory, (vec![1, 2, 3, 4, 5], vec![6])), (trajectory, (vec![1, 2, 3, 4, 5, 6], vec![7]))];
    assert_eq!(names(&ingest(&mut forest, &rest)?), [("clean", -1), ("clean", -1)]);
    forest.finish(trajectory, Finish::default())?;
    let batch = forest.freeze()?;
    let expected = [
        (PROMPT, vec![1, 2], None),
        (ACTION, vec![3, 4], None),
        (OBSERVATION, vec![5], None),
        (ACTION, vec![6], None),
        (ACTION, vec![7], None),
    ];
    assert_eq!(stored(&batch), expected);
    assert_eq!(batch.steps().num_rows(), 3);
    Ok(())
}

#[test]
fn an_end_token_that_the_template_strips_is_realigned() -> Result<()> {
    let (mut forest, trajectory) = session()?;
    let turns = [(trajectory, (vec![1, 2], vec![3, 4, 9])), (trajectory, (vec![1, 2, 3, 4, 5], vec![6, 9]))];
    assert_eq!(names(&ingest(&mut forest, &turns)?), [("clean", -1), ("realigned", 4)]);
    forest.finish(trajectory, Finish::default())?;
    let batch = forest.freeze()?;
    let expected = [
        (PROMPT, vec![1, 2], None),
        (ACTION, vec![3, 4, 9], None),
        (OBSERVATION, vec![5], None),
        (ACTION, vec![6, 9], None),
    ];
    assert_eq!(stored(&batch), expected);
    let expected = [(vec![1, 2], vec![3, 4, 9]), (vec![1, 2, 3, 4, 5], vec![6, 9])];
    let found: Vec<Turn> = steps(&batch, 0).into_iter().map(|(context, action, _)| (context, action)).collect();
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn repeated_and_rewritten_nodes_have_their_origin() -> Result<()> {
    let (mut forest, trajectory) = session()?;
    let turns = [
        (trajectory, (vec![1, 2], vec![3, 4, 5, 9])),
        (trajectory, (vec![1, 2, 3, 4, 5, 9, 6], vec![7, 9])),
        // The first message differs; all the rest is repeated.
        (trajectory, (vec![1, 8, 3, 4, 5, 9, 6, 7, 9, 10], vec![11])),
        // The turn continues the context before the rewrite.
        (trajectory, (vec![1, 2, 3, 4, 5, 9, 6, 7, 9, 12], vec![13])),
    ];
    let classes = [("clean", -1), ("clean", -1), ("rewritten", 1), ("clean", -1)];
    assert_eq!(names(&ingest(&mut forest, &turns)?), classes);
    forest.finish(trajectory, Finish::default())?;
    let batch = forest.freeze()?;
    let injected: Vec<_> = stored(&batch).into_iter().filter(|&(kind, _, _)| kind == INJECTED).collect();
    let by_content = |tokens: &[i32]| stored(&batch).iter().position(|(_, found, _)| found == tokens);
    let id = |tokens: &[i32]| by_content(tokens).map(|row| row as i64);
    let expected = [
        (INJECTED, vec![8], id(&[1, 2])),
        (INJECTED, vec![3, 4, 5, 9], id(&[3, 4, 5, 9])),
        (INJECTED, vec![6], id(&[6])),
        (INJECTED, vec![7, 9], id(&[7, 9])),
    ];
    assert_eq!(injected, expected);
    Ok(())
}

#[test]
fn a_context_of_its_own_is_a_prompt_and_shared_by_members() -> Result<()> {
    let (mut forest, first) = session()?;
    let second = forest.start(0, 1)?;
    let turns = |trajectory| [(trajectory, (vec![1, 2], vec![3])), (trajectory, (vec![20, 21, 22], vec![4]))];
    for trajectory in [first, second] {
        assert_eq!(names(&ingest(&mut forest, &turns(trajectory))?), [("clean", -1), ("rewritten", 0)]);
        forest.finish(trajectory, Finish::default())?;
    }
    let batch = forest.freeze()?;
    let prompts: Vec<_> = stored(&batch).into_iter().filter(|&(kind, _, _)| kind == PROMPT).collect();
    assert_eq!(prompts, [(PROMPT, vec![1, 2], None), (PROMPT, vec![20, 21, 22], None)]);
    Ok(())
}

#[test]
fn a_chat_with_a_mask_is_actions_and_observations() -> Result<()> {
    let (mut forest, trajectory) = session()?;
    let tokens = Lists::new(&[vec![1, 2, 3, 4, 5, 6]]);
    let sampled = Lists::new(&[vec![0, 0, 1, 1, 0, 1]]);
    let trajectories = [trajectory];
    let rows = Rows { reward: Some(&[2.0]), ..Rows::new(&trajectories, tokens.rows()?) };
    forest.append_chats(&rows, sampled.rows()?, &mut || Ok(()))?;
    forest.finish(trajectory, Finish::default())?;
    let batch = forest.freeze()?;
    let expected =
        [(PROMPT, vec![1, 2], None), (ACTION, vec![3, 4], None), (OBSERVATION, vec![5], None), (ACTION, vec![6], None)];
    assert_eq!(stored(&batch), expected);
    let rewards = batch.steps()["reward"].as_primitive::<Float32Type>();
    assert!(rewards.is_null(0) && (rewards.value(1) - 2.0).abs() < f32::EPSILON);
    Ok(())
}

#[test]
fn a_refused_row_leaves_nothing_behind() -> Result<()> {
    let (mut forest, first) = session()?;
    let second = forest.start(0, 1)?;
    ingest(&mut forest, &[(first, (vec![1, 2], vec![3]))])?;
    forest.append(second, NewNode::prompt(vec![1, 2]))?;
    forest.append(second, NewNode::action(vec![5], vec![-1.0]))?;
    let before = format!("{forest:?}");
    let good = [(first, (vec![7, 7], vec![4])), (second, (vec![1, 2, 5, 6], vec![4]))];
    let bad: [(Handle, Turn, &str); 4] = [
        (first, (vec![7, 7, 4, -3], vec![1]), "prompts[3] is -3; give token ids of at least 0"),
        (first, (vec![7], vec![1, -1]), "outputs: tokens[1] is -1; give token ids of at least 0"),
        (first, (vec![], vec![1]), "prompts is empty; give each turn a context and at least one sampled token"),
        (first, (vec![1], vec![]), "outputs is empty; give each turn a context and at least one sampled token"),
    ];
    for (trajectory, turn, message) in bad {
        let turns = [good[0].clone(), good[1].clone(), (trajectory, turn)];
        let error = ingest(&mut forest, &turns).map_or_else(|error| error.to_string(), |_| "stored".to_owned());
        assert_eq!(error, format!("turn 2 (trajectory {first}): {message}; nothing of the call was stored"));
        assert_eq!(format!("{forest:?}"), before);
    }
    ingest(&mut forest, &good)?;
    assert_ne!(format!("{forest:?}"), before);
    Ok(())
}

#[test]
fn a_turn_that_was_stored_is_refused() -> Result<()> {
    let (mut forest, trajectory) = session()?;
    let turn = |prompt: &[i32], output: &[i32]| (trajectory, (prompt.to_vec(), output.to_vec()));
    let turns = [turn(&[1, 2], &[3]), turn(&[1, 2, 3, 4], &[5]), turn(&[1, 2], &[3, 4]), turn(&[9], &[3])];
    ingest(&mut forest, &turns)?;
    let before = format!("{forest:?}");
    for (step, again) in turns.iter().enumerate() {
        let error = ingest(&mut forest, &[turn(&[1, 2, 7], &[8]), again.clone()]);
        let error = error.map_or_else(|error| error.to_string(), |_| "stored".to_owned());
        let message = format!("turn 1 (trajectory {trajectory}): the turn repeats step {step} of the trajectory with ");
        assert!(error.starts_with(&message), "{error}");
        assert_eq!(format!("{forest:?}"), before);
    }
    // Another output, another context, another trajectory.
    let second = forest.start(0, 1)?;
    let others = [turn(&[1, 2], &[5]), turn(&[1, 2, 3], &[3]), (second, (vec![1, 2], vec![3]))];
    assert_eq!(ingest(&mut forest, &others)?.nodes.len(), 3);
    // The same tokens were sampled again, with another seed.
    let (prompts, outputs) = (Lists::new(&[vec![1, 2]]), Lists::new(&[vec![3]]));
    let sampled = Lists::new(&[logprobs(&[3])]);
    let trajectories = [trajectory];
    let rows = Rows::new(&trajectories, outputs.rows()?);
    let outputs = Rows { logprobs: Some(sampled.rows()?), seed: Some(&[7]), ..rows };
    let turns =
        Turns { outputs, prompts: prompts.rows()?, known: None, images: None, realign: REALIGN, vocabulary: None };
    forest.ingest(&turns, &mut || Ok(()))?;
    assert!(forest.ingest(&turns, &mut || Ok(())).is_err());
    Ok(())
}

#[test]
fn no_more_is_known_of_a_context_than_the_turn_before_had() -> Result<()> {
    let (mut forest, trajectory) = session()?;
    let turns = [(trajectory, (vec![1, 2], vec![3])), (trajectory, (vec![1, 2, 3, 4], vec![5]))];
    for (known, row, most) in [([1, 0], 0, 0), ([0, 3], 1, 2), ([0, -1], 1, 2)] {
        let error =
            ingest_without(&mut forest, &turns, Some(&known)).map_or_else(|error| error.to_string(), |_| String::new());
        let message = format!(
            "turn {row} (trajectory {trajectory}): known is {}, but the context of the turn before it has {most} tokens; give 0 to {most}",
            known[row]
        );
        assert_eq!(error, message + "; nothing of the call was stored");
    }
    let error =
        ingest_without(&mut forest, &turns, Some(&[0, 0, 0])).map_or_else(|error| error.to_string(), |_| String::new());
    assert_eq!(error, "known has 3 rows, but trajectories has 2; give one for each");
    Ok(())
}

/// A way to derive the next prompt from an earlier context.
#[derive(Clone, Debug)]
enum Change {
    Continue(Vec<i32>),
    Strip(usize, Vec<i32>),
    Rewrite(prop::sample::Index, Vec<i32>, Vec<i32>),
    Window(prop::sample::Index, prop::sample::Index, Vec<i32>),
    Cut(prop::sample::Index),
    Fresh(Vec<i32>),
}

fn changes() -> impl Strategy<Value = Change> {
    let tokens = |least| prop::collection::vec(0..4, least..4);
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => tokens(0).prop_map(Change::Continue),
        1 => (1_usize..4, tokens(0)).prop_map(|(count, new)| Change::Strip(count, new)),
        1 => (index(), tokens(0), tokens(0)).prop_map(|(at, other, new)| Change::Rewrite(at, other, new)),
        1 => (index(), index(), tokens(0)).prop_map(|(from, to, new)| Change::Window(from, to, new)),
        1 => index().prop_map(Change::Cut),
        1 => tokens(1).prop_map(Change::Fresh),
    ]
}

fn prompt_of(change: &Change, context: &[i32]) -> Vec<i32> {
    let prompt = match change {
        Change::Continue(new) => [context, new].concat(),
        Change::Strip(count, new) => [&context[..context.len().saturating_sub(*count)], new].concat(),
        Change::Rewrite(at, other, new) => {
            let at = at.index(context.len());
            [&context[..at], other, &context[at + 1..], new].concat()
        }
        Change::Window(from, to, new) => {
            let (a, b) = (from.index(context.len()), to.index(context.len()));
            [&context[..a.min(b)], &context[a.max(b)..], new].concat()
        }
        Change::Cut(at) => context[..=at.index(context.len())].to_vec(),
        Change::Fresh(new) => new.clone(),
    };
    if prompt.is_empty() { vec![0] } else { prompt }
}

/// Naive model of a session: all of its contexts as lists, the current one last.
#[derive(Clone, Debug, Default)]
struct Session(Vec<Vec<i32>>);

impl Session {
    /// Add a turn. Return whether it is clean, and otherwise the position at which it differs.
    fn take(&mut self, (prompt, output): &Turn) -> (bool, i32) {
        let shared = |context: &Vec<i32>| context.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let continued = self.0.iter().rposition(|context| shared(context) == context.len());
        let found = match continued {
            Some(_) => (true, -1),
            None if self.0.is_empty() => (true, -1),
            None => (false, self.0.iter().map(shared).max().unwrap_or(0) as i32),
        };
        if continued.is_some_and(|place| place + 1 == self.0.len()) {
            self.0.pop();
        }
        self.0.push([prompt.as_slice(), output].concat());
        found
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any changes to the contexts of two sessions, in calls of any size, each output is trained once, in the
    /// context in which it was sampled.
    #[test]
    fn every_output_is_trained_once_in_its_own_context(
        plays in prop::collection::vec(
            (0_usize..2, changes(), any::<prop::sample::Index>(), prop::collection::vec(0..4, 1..4)), 1..14),
        calls in prop::collection::vec(1_usize..4, 14),
    ) {
        let (mut forest, first) = session()?;
        let sessions = [first, forest.start(0, 1)?];
        let mut models: [Session; 2] = Default::default();
        let mut contexts: [Vec<Vec<i32>>; 2] = Default::default();
        let mut turns: Vec<(Handle, Turn)> = Vec::new();
        let mut expected = Vec::new();
        for (session, change, which, output) in plays {
            let held = &mut contexts[session];
            let base = if held.is_empty() { vec![1, 2] } else { held[which.index(held.len())].clone() };
            let prompt = prompt_of(&change, &base);
            if turns.contains(&(sessions[session], (prompt.clone(), output.clone()))) {
                continue;
            }
            held.push([prompt.clone(), output.clone()].concat());
            expected.push(models[session].take(&(prompt.clone(), output.clone())));
            turns.push((sessions[session], (prompt, output)));
        }
        let mut found = Vec::new();
        let mut rest = turns.as_slice();
        for size in calls.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (call, later) = rest.split_at(size.min(rest.len()));
            found.extend(names(&ingest(&mut forest, call)?));
            rest = later;
        }
        let found: Vec<_> = found.into_iter().map(|(name, at)| (name == "clean", at)).collect();
        prop_assert_eq!(found, expected);
        // Tokens that a context shares with the one before need not be given again.
        let (mut other, first) = session()?;
        let others = [first, other.start(0, 1)?];
        let known = turns.iter().enumerate().map(|(row, (of, (prompt, _)))| {
            let before = turns[..row].iter().rev().find(|(session, _)| session == of);
            before.map_or(0, |(_, (before, _))| common_prefix(before, prompt) as i64)
        });
        let known: Vec<i64> = known.collect();
        let same = |of: Handle| others[usize::from(of != sessions[0])];
        let again: Vec<_> = turns.iter().map(|(of, turn)| (same(*of), turn.clone())).collect();
        ingest_without(&mut other, &again, Some(&known))?;
        let untimed = |forest: &Forest| -> Vec<_> {
            let group = forest.of_number(0).unwrap();
            let content = |node: &Node| NewNode { origin: node.content.origin.map(|origin| split(origin).1 as Handle), ..node.content.clone() };
            let nodes = group.nodes.iter().map(|node| (content(node), node.parent, node.state_key)).collect::<Vec<_>>();
            group.trajectories.iter().map(|entry| (format!("{entry:?}"), nodes.clone())).collect()
        };
        prop_assert_eq!(untimed(&other), untimed(&forest));
        for (number, trajectory) in sessions.into_iter().enumerate() {
            let status = if contexts[number].is_empty() { Status::Aborted } else { Status::Finished };
            forest.finish(trajectory, Finish { status, ..Finish::default() })?;
        }
        let batch = forest.freeze()?;
        let mut id = 0;
        for session in sessions {
            let own: Vec<_> = turns.iter().filter(|&&(of, _)| of == session).map(|(_, turn)| turn.clone()).collect();
            if own.is_empty() {
                continue;
            }
            let found = steps(&batch, id);
            prop_assert_eq!(found.len(), own.len());
            for ((context, action, values), (prompt, output)) in found.into_iter().zip(own) {
                prop_assert_eq!(&context, &prompt);
                prop_assert_eq!(values, logprobs(&output));
                prop_assert_eq!(action, output);
            }
            id += 1;
        }
        // Every action node is the action of one step.
        let actions = batch.steps()["node_id"].as_primitive::<Int64Type>().values().to_vec();
        let distinct: BTreeSet<i64> = actions.iter().copied().collect();
        prop_assert_eq!(distinct.len(), actions.len());
        let stored = stored(&batch);
        prop_assert_eq!(stored.iter().filter(|&&(kind, _, _)| kind == ACTION).count(), actions.len());
        prop_assert!(stored.iter().all(|(kind, _, origin)| origin.is_none() || *kind == INJECTED));
    }
}
