//! Tests of token columns on disk. The rollouts of the other tests have some too: see [`grow`].

use super::*;
use crate::token_columns::TokenRows;

/// Return a batch with rows of the given width.
fn recorded(iteration: i64, width: usize) -> Batch {
    let mut forest = Forest::new(iteration, 0);
    forest.add_group(0, "task").unwrap();
    let trajectory = forest.start(0, 0).unwrap();
    forest.append(trajectory, NewNode::prompt(vec![1, 2])).unwrap();
    let values = Numbers::U16((0..3 * width).map(|value| (1000 * iteration as usize + value) as u16).collect());
    let rows = BTreeMap::from([("experts".to_owned(), TokenRows { begin: Some(0), width, values })]);
    forest.append_with(trajectory, NewNode::action(vec![3, 4], vec![-0.5, -0.25]), &rows).unwrap();
    forest.finish(trajectory, Finish { reward: Some(1.0), ..Finish::default() }).unwrap();
    forest.freeze().unwrap()
}

#[test]
fn rows_come_back_beside_nodes_without_any() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut batches = Vec::new();
    for iteration in 0..6 {
        let fresh = if iteration % 2 == 1 { recorded(iteration, 2) } else { grow(iteration, 2 * iteration as u64) };
        let batch = fresh.rebase(store.next_ids()).unwrap();
        store.append(&batch, iteration, false).unwrap();
        store.close_iteration(&batch, "{}").unwrap();
        batches.push(batch);
    }
    for _ in 0..2 {
        for (iteration, expected) in batches.iter().enumerate() {
            let found = store.batch(iteration as i64).unwrap();
            let rows = |batch: &Batch| batch.wide_column("experts", Level::NodeToken);
            assert_eq!(rows(&found), rows(expected), "iteration {iteration}");
            assert_eq!(rows(&found).is_some(), iteration % 2 == 1);
        }
        let ids = [i64s_of(&batches[1])[0], i64s_of(&batches[0])[0]];
        let both = store.trajectories(&ids).unwrap();
        let Numbers::U8(known) = both.column("experts.known", Level::NodeToken).unwrap() else { panic!("a mask") };
        assert_eq!(known.iter().map(|&known| u32::from(known)).sum::<u32>(), 3);
        store.compact(&mut || Ok(())).unwrap();
        drop(store);
        store = open(&memory);
        assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
    }
    // Draw a trajectory with rows again, together with one without.
    let fresh = grow(6, 0);
    let batch = with_replay(&mut store, &fresh, &i64s_of(&batches[1])[..1], 6).rebase(store.next_ids()).unwrap();
    store.append(&batch, 6, false).unwrap();
    store.close_iteration(&batch, "{}").unwrap();
    assert_same(&store.batch(6).unwrap(), &batch);
}

fn i64s_of(batch: &Batch) -> Vec<i64> {
    crate::batch::i64s(batch.trajectories(), "trajectory_id").unwrap().values().to_vec()
}

#[test]
fn a_column_keeps_its_type() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let batch = recorded(0, 2).rebase(store.next_ids()).unwrap();
    store.append(&batch, 0, false).unwrap();
    for reopened in [false, true] {
        if reopened {
            store.flush().unwrap();
            drop(store);
            store = open(&memory);
        }
        let other = recorded(0, 3).rebase(store.next_ids()).unwrap();
        let error = store.append(&other, 0, false).unwrap_err().to_string();
        assert!(error.contains("uint16 of width 2") && error.contains("uint16 of width 3"), "{error}");
    }
    assert_eq!(store.sequence(), 1);
}
