//! Tests of writers: one at a time, in its own files, with consistent rows.

use super::*;
use crate::ErrorKind;

#[test]
fn two_writers_lose_nothing_that_was_acknowledged() {
    for ahead in 1..5 {
        let memory = Memory::new();
        let mut first = open(&memory);
        // Simulate a lock that does not work.
        memory.lose_locks();
        let mut second = open(&memory);
        let mut batches: Vec<Batch> = (0..ahead).map(|_| trained(&mut first, &[])).collect();
        let batch = second.rebase(&grown(0, 9)).unwrap();
        second.append(&batch, 0, false).unwrap();
        let error = second.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("another process has written this store"), "{error}");
        assert!(second.append(&batch, 0, false).unwrap_err().to_string().contains("open it again"));
        // The first writer continues.
        batches.push(trained(&mut first, &[0]));
        drop((first, second));
        memory.lose_locks();
        let mut store = open(&memory);
        assert_eq!(store.iteration(), ahead + 1);
        for (iteration, batch) in batches.iter().enumerate() {
            assert_same(&store.batch(iteration as i64).unwrap(), batch);
        }
        assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
    }
}

/// Return a batch that continues a trajectory of another batch.
fn adopting(batch: &Batch, trajectory: i64) -> Batch {
    let mut forest = Forest::new(0, 5);
    forest.add_group(0, "task").unwrap();
    let adopted = forest.adopt(0, batch, trajectory, None).unwrap();
    let forked = forest.fork(adopted, None, None).unwrap();
    forest.append(forked, NewNode::action(vec![7, 8], vec![-0.5; 2])).unwrap();
    forest.step(forked, &StepOutcome::default()).unwrap();
    forest.finish(forked, Finish { reward: Some(1.0), ..Finish::default() }).unwrap();
    forest.freeze().unwrap()
}

#[test]
fn rows_that_are_not_stored_are_not_taken_for_stored_ones() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let unknown = adopting(&grown(0, 1), 1);
    let error = store.rebase(&unknown).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("node_id 0, "), "{error}");
    // Append other rows under the same ids; some of them are equal.
    for seed in 0..3 {
        store.append(&store.rebase(&grown(0, seed)).unwrap(), 0, true).unwrap();
        if seed == 1 {
            store.flush().unwrap();
        }
    }
    let rebased = store.rebase(&unknown).unwrap();
    let (sequence, next) = (store.sequence(), store.next_ids());
    let error = store.append(&rebased, 0, true).unwrap_err();
    assert!(error.to_string().contains("_id ") && error.to_string().contains("store.trajectory_batch(ids)"), "{error}");
    assert_eq!((store.sequence(), store.next_ids()), (sequence, next), "nothing was queued");
    // Use stored rows, and rows that are still queued.
    let known = store.rebase(&grown(0, 7)).unwrap();
    store.append(&known, 0, true).unwrap();
    let queued = adopting(&known, known.base().trajectory);
    store.append(&store.rebase(&queued).unwrap(), 0, true).unwrap();
    assert_eq!(store.sequence(), sequence, "what is queued stays queued");
    store.flush().unwrap();
    let again = adopting(&store.trajectories(&[0]).unwrap(), 0);
    store.append(&store.rebase(&again).unwrap(), 0, true).unwrap();
    assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
}

#[test]
fn a_state_that_is_nested_too_deep_is_refused_before_anything_is_written() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [1, 63, 64] {
        let memory = Memory::new();
        let mut store = open(&memory);
        store.close_iteration(&Batch::empty().unwrap(), &nested(depth)).unwrap();
        drop(store);
        assert_eq!(open(&memory).state(), nested(depth));
    }
    let memory = Memory::new();
    let mut store = open(&memory);
    let operations = memory.operations();
    for depth in [65, 126, 127, 128, 100_000] {
        let error = store.close_iteration(&Batch::empty().unwrap(), &nested(depth)).unwrap_err();
        assert!(error.to_string().contains(&format!("nested {depth} deep, but at most 64 is supported")), "{error}");
    }
    for text in ["", "{", "nul", "[1,]", "1 2"] {
        let error = store.close_iteration(&Batch::empty().unwrap(), text).unwrap_err();
        assert!(error.to_string().contains("state is not JSON"), "{error}");
    }
    assert_eq!(memory.operations(), operations);
    let brackets = serde_json::json!({"text": "[[\"{\\".repeat(100)}).to_string();
    store.close_iteration(&Batch::empty().unwrap(), &brackets).unwrap();
    assert_eq!(store.state(), brackets);
}

#[test]
fn files_of_others_stay_where_they_are() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let batch = trained(&mut store, &[]);
    drop(store);
    let hash = "ab".repeat(32);
    memory.create_folder(Path::new("/run/blobs/ab")).unwrap();
    let theirs = [
        "/run/nodes/1.arrow",
        "/run/nodes/my.tmp",
        "/run/nodes/000000000099-1.arrow",
        "/run/nodes/+00000000001.arrow",
        "/run/draws/notes.txt",
        "/run/manifest/9.json",
        "/run/manifest/+0000099.json",
        "/run/manifest/x.tmp",
        "/run/blobs/ab/x.tmp",
        "/run/recipe.toml",
    ];
    let ours = [
        "/run/nodes/000000000000.00000007.tmp".to_owned(),
        "/run/manifest/00000009.tmp".to_owned(),
        format!("/run/blobs/ab/{hash}.tmp"),
    ];
    for path in theirs.iter().copied().chain(ours.iter().map(String::as_str)) {
        memory.write(Path::new(path), b"text").unwrap();
    }
    let mut store = open(&memory);
    store.compact(&mut || Ok(())).unwrap();
    assert_same(&store.batch(0).unwrap(), &batch);
    let left = memory.image().files();
    assert!(theirs.iter().all(|path| left.contains_key(Path::new(path))), "{:?}", left.keys());
    assert!(ours.iter().all(|path| !left.contains_key(Path::new(path))), "{:?}", left.keys());
}
