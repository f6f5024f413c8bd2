//! Random sequences of operations on a store, compared with a map in memory.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use proptest::prelude::*;

use super::*;

/// An operation on a store.
#[derive(Clone, Debug)]
enum Action {
    Append { seed: u64, replayed: Vec<usize> },
    Partial { seed: u64 },
    Close,
    Flush,
    Compact,
    Drop { iterations: usize },
    Reopen,
    Kill,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0_u64..1000, prop::collection::vec(0_usize..1000, 0..3)).prop_map(|(seed, replayed)| Action::Append { seed, replayed }),
        1 => (0_u64..1000).prop_map(|seed| Action::Partial { seed }),
        4 => Just(Action::Close),
        1 => Just(Action::Flush),
        1 => Just(Action::Compact),
        1 => (0_usize..4).prop_map(|iterations| Action::Drop { iterations }),
        1 => Just(Action::Reopen),
        1 => Just(Action::Kill),
    ]
}

/// The model of a store: batches by iteration, and the tokens of every trajectory.
#[derive(Clone, Debug, Default)]
struct Model {
    batches: BTreeMap<i64, Batch>,
    tokens: BTreeMap<i64, Vec<i32>>,
    iteration: i64,
}

/// Return the tokens of each trajectory of a batch, found without the batch's own joins.
fn paths(batch: &Batch) -> BTreeMap<i64, Vec<i32>> {
    let nodes = batch.nodes();
    let column = |name: &str| nodes[name].as_primitive::<Int64Type>().clone();
    let (ids, parents, tokens) = (column("node_id"), column("parent_id"), nodes["tokens"].as_list::<i32>());
    let rows = batch.trajectories();
    let trajectories = rows["trajectory_id"].as_primitive::<Int64Type>().values().iter();
    let leaves = rows["leaf_node_id"].as_primitive::<Int64Type>().values().iter();
    let path = |leaf: i64| {
        let (mut parts, mut next) = (Vec::new(), Some(leaf));
        while let Some(id) = next {
            let row = ids.values().iter().position(|&other| other == id).unwrap();
            parts.push(tokens.value(row).as_primitive::<arrow_array::types::Int32Type>().values().to_vec());
            next = (!arrow_array::Array::is_null(&parents, row)).then(|| parents.value(row));
        }
        parts.into_iter().rev().flatten().collect()
    };
    trajectories.zip(leaves).map(|(&id, &leaf)| (id, path(leaf))).collect()
}

fn check(store: &mut Store, model: &Model) {
    assert_eq!(store.iteration(), model.iteration);
    let dropped = store.head.dropped;
    for (&iteration, expected) in &model.batches {
        assert_eq!(store.has_batch(iteration).unwrap(), iteration >= dropped);
        if iteration >= dropped {
            assert_same(&store.batch(iteration).unwrap(), expected);
        }
    }
    let known = store.whole_table(Table::Trajectories).unwrap();
    let known = known["trajectory_id"].as_primitive::<Int64Type>().values().to_vec();
    if dropped == 0 {
        assert_eq!(known, model.tokens.keys().copied().collect::<Vec<_>>());
    }
    let found = store.trajectories(&known).unwrap();
    assert!(paths(&found).iter().all(|(id, tokens)| model.tokens[id] == *tokens));
    assert!(store.verify(&mut || Ok(())).unwrap().iter().all(|found| found.kind == "duplicate"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_the_map_of_what_was_flushed(actions in prop::collection::vec(action(), 1..24)) {
        let memory = Memory::new();
        let mut store = open(&memory);
        // The durable state, and the state including queued writes.
        let (mut durable, mut model) = (Model::default(), Model::default());
        for (step, action) in actions.into_iter().enumerate() {
            let iteration = store.iteration();
            match action {
                Action::Append { seed, replayed } if !model.batches.contains_key(&iteration) => {
                    let known = store.whole_table(Table::Trajectories).unwrap();
                    durable = model.clone();
                    let known = known["trajectory_id"].as_primitive::<Int64Type>().values().to_vec();
                    let mut ids: Vec<i64> = replayed.iter().filter(|_| !known.is_empty()).map(|at| known[at % known.len()]).collect();
                    ids.sort_unstable();
                    ids.dedup();
                    let batch = with_replay(&mut store, &grown(iteration, seed), &ids, iteration);
                    let batch = batch.rebase(store.next_ids()).unwrap();
                    store.append(&batch, iteration, false).unwrap();
                    model.tokens.extend(paths(&batch));
                    model.batches.insert(iteration, batch);
                }
                Action::Append { .. } => {}
                Action::Partial { seed } => {
                    let batch = grown(iteration, seed).select_draws(&[]).unwrap().rebase(store.next_ids()).unwrap();
                    store.append(&batch, iteration, true).unwrap();
                    model.tokens.extend(paths(&batch));
                }
                Action::Close => {
                    let batch = model.batches.get(&iteration).cloned().unwrap_or_else(|| Batch::empty().unwrap());
                    let batch = credited(&batch, step as u64);
                    store.close_iteration(&batch, &serde_json::json!(step).to_string()).unwrap();
                    model.batches.entry(iteration).and_modify(|old| *old = batch);
                    model.iteration += 1;
                    durable = model.clone();
                }
                Action::Flush => {
                    store.flush().unwrap();
                    durable = model.clone();
                }
                Action::Compact => {
                    store.compact(&mut || Ok(())).unwrap();
                    durable = model.clone();
                }
                Action::Drop { iterations } => {
                    let before = (store.head.dropped + iterations as i64).min(iteration);
                    store.drop_before(before, true, &mut || Ok(())).unwrap();
                    durable = model.clone();
                }
                Action::Reopen => {
                    store.close().unwrap();
                    store = open(&memory);
                    durable = model.clone();
                }
                Action::Kill => {
                    drop(store);
                    store = open(&memory);
                    model = durable.clone();
                }
            }
            if step % 4 == 3 {
                check(&mut store, &model);
                durable = model.clone();
            }
        }
        check(&mut store, &model);
    }
}
