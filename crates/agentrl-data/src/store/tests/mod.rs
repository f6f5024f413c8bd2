//! Tests of the store: comparison with lists and maps, on disks that fail.

mod basics;
mod crash;
mod damage;
mod maintenance;
mod memory_fs;
mod merge_costs;
mod random_operations;
mod rollout_log;
mod states;
mod token_columns;
mod writers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use super::folders::FOLDERS;
use super::*;
use crate::batch::{Batch, Level, NewDraws, Numbers};
use crate::forest::{Finish, Forest, NewNode, StepOutcome};
use crate::schema::Table;
use crate::token_columns::TokenRows;
use agentrl_compute::hash::hash_bytes;
use arrow_array::{RecordBatch, new_null_array};
use arrow_schema::{Field, Schema};
use memory_fs::Memory;

/// The path of the store in [`Memory`].
fn run() -> &'static Path {
    Path::new("/run")
}

fn open(memory: &Memory) -> Store {
    Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch).unwrap()
}

/// A pseudo-random number generator with the same numbers in every run.
pub(super) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Return a number from 0 to `bound - 1`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 += 1;
        let hash = u128::from_le_bytes(hash_bytes(&self.0.to_le_bytes()));
        (hash % bound as u128) as usize
    }
}

/// Return rollouts of one iteration: one or two groups of two members with a shared prompt. Equal arguments return
/// equal batches, including their timestamps.
fn grown(iteration: i64, seed: u64) -> Batch {
    static GROWN: Mutex<BTreeMap<(i64, u64), Batch>> = Mutex::new(BTreeMap::new());
    GROWN.lock().unwrap().entry((iteration, seed)).or_insert_with(|| grow(iteration, seed)).clone()
}

fn grow(iteration: i64, seed: u64) -> Batch {
    let mut random = Random::new(seed << 32);
    let mut forest = Forest::new(iteration, seed);
    for group in 0..=random.below(2) as u32 {
        forest.add_group(group, &format!("task-{}", random.below(3))).unwrap();
        for member in 0..2 {
            let trajectory = forest.start(group, member).unwrap();
            forest.append(trajectory, NewNode::prompt(vec![1, 2, group as i32])).unwrap();
            let tokens: Vec<i32> = (0..=random.below(4)).map(|_| random.below(50) as i32).collect();
            let logprobs = tokens.iter().map(|&token| -0.01 * (1 + token) as f32).collect();
            // Every other batch has rows for the prompt and for all tokens except the last.
            let values = Numbers::U8((0..2 * tokens.len() + 4).map(|value| (seed as usize + value) as u8).collect());
            let rows = (seed % 2 == 1).then(|| ("routes".to_owned(), TokenRows { begin: Some(0), width: 2, values }));
            forest.append_with(trajectory, NewNode::action(tokens, logprobs), &rows.into_iter().collect()).unwrap();
            forest.step(trajectory, &StepOutcome::default()).unwrap();
            let finish =
                Finish { reward: Some(random.below(2) as f32), success: Some(member == 1), ..Finish::default() };
            forest.finish(trajectory, finish).unwrap();
        }
    }
    forest.freeze().unwrap()
}

/// Add columns as a recipe computes them.
fn credited(batch: &Batch, seed: u64) -> Batch {
    let mut random = Random::new(seed);
    let advantages = (0..batch.num_draws()).map(|_| random.below(9) as f32).collect();
    let weights = (0..batch.level_len(Level::Token)).map(|_| random.below(9) as f64).collect();
    let values = (0..batch.level_len(Level::NodeToken)).map(|_| random.below(9) as f32).collect();
    let batch = batch.with_column("advantage", Level::Draw, Numbers::F32(advantages)).unwrap();
    let batch = batch.with_column("weight", Level::Token, Numbers::F64(weights)).unwrap();
    let batch = batch.with_column("value", Level::NodeToken, Numbers::F32(values)).unwrap();
    batch.with_source("recipe", "grpo")
}

/// Return a batch that also draws older trajectories.
fn with_replay(store: &mut Store, fresh: &Batch, ids: &[i64], iteration: i64) -> Batch {
    let batch = Batch::concat(&[fresh.clone(), store.trajectories(ids).unwrap()]).unwrap();
    let new = NewDraws {
        trajectory_ids: ids,
        group_ids: None,
        source: "replay",
        probability: None,
        old_logprob: "behaviour",
        reason: Some("kept"),
        iteration: Some(iteration),
    };
    batch.draw(&new).unwrap()
}

/// Run one iteration as a training loop does.
fn trained(store: &mut Store, replayed: &[i64]) -> Batch {
    let iteration = store.iteration();
    let batch = with_replay(store, &grown(iteration, iteration as u64), replayed, iteration);
    let batch = batch.rebase(store.next_ids()).unwrap();
    store.append(&batch, iteration, false).unwrap();
    let batch = credited(&batch, iteration as u64);
    store.close_iteration(&batch, &serde_json::json!({"closed": iteration}).to_string()).unwrap();
    batch
}

fn assert_same(found: &Batch, expected: &Batch) {
    for table in Table::ALL {
        assert_eq!(found.table(table), expected.table(table), "table {}", table.name());
    }
    for level in [Level::Draw, Level::Step, Level::NodeToken] {
        let (found, expected) = (found.computed_table(level).unwrap(), expected.computed_table(level).unwrap());
        assert_eq!(found, expected, "columns at level {}", level.name());
    }
}

fn state_array(dtype: Dtype, width: Option<u64>, bytes: Vec<u8>) -> StateArray {
    let rows = bytes.len() as u64 / (dtype.bytes() as u64 * width.unwrap_or(1));
    StateArray { dtype, width, rows, bytes: Arc::new(bytes) }
}

/// All data that a reader can see.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    sequence: u64,
    iteration: i64,
    dropped: i64,
    state: String,
    arrays: Arrays,
    rows: Vec<Vec<RecordBatch>>,
}

impl Seen {
    fn of(store: &mut Store) -> Self {
        let rows = FOLDERS.iter().map(|folder| in_one(&store.all_rows(folder).unwrap())).collect();
        let arrays = store.arrays().unwrap();
        let head = &store.head;
        let (sequence, iteration) = (head.sequence, head.iteration);
        Self { sequence, iteration, dropped: head.dropped, state: head.state.clone(), arrays, rows }
    }
}

/// Combine all rows into one table with the columns of all of them, by name. A column is null in rows that lack it.
fn in_one(rows: &[RecordBatch]) -> Vec<RecordBatch> {
    let Some(first) = rows.first() else { return Vec::new() };
    let mut fields = BTreeMap::new();
    for part in rows {
        fields.extend(part.schema().fields().iter().map(|field| (field.name().clone(), field.clone())));
    }
    let fields: Vec<_> = fields.into_values().collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, first.schema().metadata().clone()));
    let widened = rows.iter().map(|part| {
        let column = |field: &Arc<Field>| {
            let found = part.column_by_name(field.name()).cloned();
            found.unwrap_or_else(|| new_null_array(field.data_type(), part.num_rows()))
        };
        RecordBatch::try_new(schema.clone(), schema.fields().iter().map(column).collect()).unwrap()
    });
    vec![arrow_select::concat::concat_batches(&schema, &widened.collect::<Vec<_>>()).unwrap()]
}
