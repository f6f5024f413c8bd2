use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;

use super::*;
use crate::batch::Numbers;
use crate::forest::{Finish, Forest, NewNode, StepOutcome};

fn batch(iteration: i64) -> Batch {
    let mut forest = Forest::new(iteration, 5);
    for group in 0..2 {
        forest.add_group(group, &format!("task-{group}")).unwrap();
        for member in 0..2 {
            let trajectory = forest.start(group, member).unwrap();
            forest.append(trajectory, NewNode::prompt(vec![1, 2, 3])).unwrap();
            forest.append(trajectory, NewNode::action(vec![4, 5], vec![-0.5, -0.25])).unwrap();
            forest.step(trajectory, &StepOutcome::default()).unwrap();
            let finish = Finish { reward: Some(member as f32), success: Some(member == 1), ..Finish::default() };
            forest.finish(trajectory, finish).unwrap();
        }
    }
    forest.freeze().unwrap()
}

fn closed(store: &mut Store, iteration: i64) -> Batch {
    let batch = batch(iteration).rebase(store.next_ids()).unwrap();
    store.append(&batch, iteration).unwrap();
    let advantages = Numbers::F32(vec![-1.0, 1.0, -1.0, 1.0]);
    let weights = Numbers::F64((0..batch.level_len(Level::Token)).map(|token| token as f64).collect());
    let batch = batch.with_column("advantage", Level::Draw, advantages).unwrap();
    let batch = batch.with_column("weight", Level::Token, weights).unwrap();
    let batch = batch.with_source("recipe", "grpo");
    store.close_iteration(&batch, serde_json::json!({"seen": iteration})).unwrap();
    batch
}

#[test]
fn every_batch_comes_back_as_it_was_trained() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    let batches: Vec<Batch> = (0..3).map(|iteration| closed(&mut store, iteration)).collect();
    drop(store);
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(store.iteration(), 3);
    assert_eq!(store.state(), &serde_json::json!({"seen": 2}));
    for (iteration, expected) in batches.iter().enumerate() {
        let found = store.batch(iteration as i64).unwrap();
        for table in Table::ALL {
            assert_eq!(found.table(table), expected.table(table), "table {}", table.name());
        }
        for (name, level) in [("advantage", Level::Draw), ("weight", Level::Token)] {
            assert_eq!(found.column(name, level).unwrap(), expected.column(name, level).unwrap());
        }
    }
    let ids = store.whole_table(Table::Nodes).unwrap()["node_id"].as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(ids, (0..18).collect::<Vec<i64>>());
    assert!(store.batch(3).unwrap_err().to_string().contains("no training batch of iteration 3"));
}

#[test]
fn ids_that_are_taken_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    store.append(&batch(0), 0).unwrap();
    assert!(store.append(&batch(0), 0).unwrap_err().to_string().contains("rebase"));
}

#[test]
fn a_second_writer_is_refused_and_a_reader_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    closed(&mut store, 0);
    let error = Store::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let mut reader = Store::open_read_only(folder.path()).unwrap();
    assert_eq!(reader.table(Table::Draws).unwrap().len(), 1);
    assert!(reader.append(&batch(1), 1).unwrap_err().to_string().contains("reading only"));
    drop(store);
    Store::open(folder.path()).unwrap();
}

#[test]
fn a_store_without_a_commit_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Store::open(folder.path()).unwrap();
    let reader = Store::open_read_only(folder.path()).unwrap();
    assert_eq!((reader.version(), reader.iteration()), (0, 0));
    assert_eq!(reader.whole_table(Table::Nodes).unwrap().num_rows(), 0);
    drop(writer);
    assert_eq!(Store::open(folder.path()).unwrap().version(), 0);
}

#[test]
fn damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    closed(&mut store, 0);
    let path = folder.path().join("nodes/00000001.arrow");
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (bytes, expected) in [(&whole[..whole.len() - 1], "bytes"), (&flipped[..], "checksum")] {
        fs::publish(&path, bytes).unwrap();
        let error = store.batch(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("00000001.arrow") && error.to_string().contains(expected), "{error}");
    }
    let manifest = folder.path().join("manifest/00000002.json");
    fs::publish(&manifest, b"{}\nabc\n").unwrap();
    assert_eq!(Store::open_read_only(folder.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(Store::open_read_only(&folder.path().join("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_commit_that_was_not_finished_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    let expected = closed(&mut store, 0);
    // A writer that died after some of its files and before its manifest.
    let unfinished =
        ["nodes/00000003.arrow", "tasks/00000003.arrow", "steps/00000003.tmp"].map(|name| folder.path().join(name));
    for path in &unfinished {
        fs::publish(path, b"half").unwrap();
    }
    drop(store);
    Store::open_read_only(folder.path()).unwrap();
    assert!(unfinished.iter().all(|path| path.is_file()), "a reader changes nothing");
    let mut store = Store::open(folder.path()).unwrap();
    assert_eq!(store.whole_table(Table::Nodes).unwrap().num_rows(), expected.nodes().num_rows());
    assert!(!unfinished.iter().any(|path| path.exists()), "stock tools would read them");
    closed(&mut store, 1);
    assert_eq!(store.iteration(), 2);
    assert_eq!(store.whole_table(Table::Nodes).unwrap().num_rows(), 2 * expected.nodes().num_rows());
}

#[test]
fn files_of_commits_that_no_manifest_knows_are_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    closed(&mut store, 0);
    closed(&mut store, 1);
    drop(store);
    for version in 1..=4 {
        fs::remove(&folder.path().join(format!("manifest/{version:08}.json"))).unwrap();
    }
    let error = Store::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("nodes/00000003.arrow"), "{error}");
    assert!(folder.path().join("nodes/00000001.arrow").is_file());
}

#[test]
fn an_iteration_is_closed_with_the_batch_that_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    let whole = batch(0);
    store.append(&whole, 0).unwrap();
    for other in [whole.select_draws(&[0, 1]).unwrap(), whole.select_draws(&[1, 0, 2, 3]).unwrap()] {
        let error = store.close_iteration(&other, serde_json::Value::Null).unwrap_err();
        assert!(error.to_string().contains("the 4 draws committed for iteration 0"), "{error}");
    }
    store.close_iteration(&whole, serde_json::Value::Null).unwrap();
    assert!(store.close_iteration(&whole, serde_json::Value::Null).unwrap_err().to_string().contains("iteration 1"));
    store.close_iteration(&Batch::empty().unwrap(), serde_json::Value::Null).unwrap();
}
