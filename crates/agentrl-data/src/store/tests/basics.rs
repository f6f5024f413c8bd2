//! Tests of the public store API.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;

use super::*;
use crate::ErrorKind;

#[test]
fn every_batch_comes_back_as_it_was_trained() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path(), Sync::Batch).unwrap();
    let mut batches = vec![trained(&mut store, &[])];
    // Replay trajectories of older iterations, one of them in two iterations.
    for replayed in [vec![1], vec![0, 1], vec![], vec![2, 5, 1]] {
        batches.push(trained(&mut store, &replayed));
    }
    store.close().unwrap();
    let mut store = Store::open(folder.path(), Sync::Batch).unwrap();
    assert_eq!((store.iteration(), store.sequence()), (5, 10));
    assert_eq!(store.state(), serde_json::json!({"closed": 4}).to_string());
    for (iteration, expected) in batches.iter().enumerate() {
        let found = store.batch(iteration as i64).unwrap();
        assert_same(&found, expected);
        for (name, level) in [("advantage", Level::Draw), ("weight", Level::Token), ("value", Level::NodeToken)] {
            assert_eq!(found.column(name, level).unwrap(), expected.column(name, level).unwrap());
        }
    }
    let nodes = store.whole_table(Table::Nodes).unwrap();
    let ids = nodes["node_id"].as_primitive::<Int64Type>().values();
    assert!(ids.windows(2).all(|pair| pair[0] + 1 == pair[1]), "each node once, though some were trained often");
    assert!(store.batch(5).unwrap_err().to_string().contains("no training batch of iteration 5"));
    assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
}

#[test]
fn queued_batches_become_durable_together() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let operations = memory.operations();
    for iteration in 0..5 {
        let batch = grown(0, iteration).rebase(store.next_ids()).unwrap();
        assert_eq!(store.append(&batch, 0, false).unwrap(), 1 + iteration);
    }
    assert_eq!((memory.operations(), store.sequence(), store.version()), (operations, 0, 0));
    assert_eq!(store.flush().unwrap(), 5);
    assert_eq!((store.sequence(), store.version()), (5, 1));
    assert_eq!(memory.image().files().keys().filter(|path| path.starts_with("/run/nodes")).count(), 1);
    let operations = memory.operations();
    assert_eq!(store.flush().unwrap(), 5);
    assert_eq!(memory.operations(), operations);
}

#[test]
fn each_mode_of_syncing_does_what_it_says() {
    let synced = |sync: Sync| {
        let memory = Memory::new();
        let mut store = Store::open_on(Arc::new(memory.clone()), run(), sync).unwrap();
        let batch = grown(0, 0).rebase(store.next_ids()).unwrap();
        store.append(&batch, 0, false).unwrap();
        (store.sequence(), memory)
    };
    let (always, memory) = synced(Sync::Always);
    let lost = memory.image().after(memory_fs::Crash::LoseAll, &mut Random::new(0));
    assert_eq!((always, open(&Memory::from(lost)).sequence()), (1, 1));
    assert_eq!(synced(Sync::Batch).0, 0);
    let memory = Memory::new();
    let mut store = Store::open_on(Arc::new(memory.clone()), run(), Sync::Never).unwrap();
    trained(&mut store, &[]);
    assert_eq!(store.sequence(), 2);
    let killed = memory.image().after(memory_fs::Crash::Kill, &mut Random::new(0));
    assert_eq!(open(&Memory::from(killed)).sequence(), 2);
    let lost = memory.image().after(memory_fs::Crash::LoseAll, &mut Random::new(0));
    assert!(lost.files().is_empty(), "nothing was synced");
    assert!(Sync::from_name("sometimes").unwrap_err().to_string().contains("sometimes"));
}

#[test]
fn ids_that_are_taken_are_refused() {
    let memory = Memory::new();
    let mut store = open(&memory);
    store.append(&grown(0, 0), 0, false).unwrap();
    // Ids are taken even while the first append is only queued.
    assert!(store.append(&grown(0, 0), 0, false).unwrap_err().to_string().contains("store.rebase(batch)"));
    let ahead = grown(0, 0).rebase(crate::batch::NextIds { node: 99, ..store.next_ids() }).unwrap();
    assert!(store.append(&ahead, 0, false).unwrap_err().to_string().contains("the store that it came from"));
    let other = grown(3, 0).rebase(store.next_ids()).unwrap();
    let error = store.append(&other, 4, false).unwrap_err();
    assert!(error.to_string().contains("draws of iteration 3, but is appended as iteration 4"), "{error}");
    assert_eq!(store.flush().unwrap(), 1, "what is refused is not queued");
}

#[test]
fn one_writes_and_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path(), Sync::Batch).unwrap();
    trained(&mut store, &[]);
    let error = Store::open(folder.path(), Sync::Batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // The failed open must not release the lock; otherwise another process would get it.
    assert_eq!(Store::open(folder.path(), Sync::Batch).unwrap_err().kind(), ErrorKind::Busy);
    let mut reader = Store::open_read_only(folder.path()).unwrap();
    assert!(reader.append(&grown(1, 1), 1, false).unwrap_err().to_string().contains("reading only"));
    drop(store);
    Store::open(folder.path(), Sync::Batch).unwrap();
}

#[test]
fn a_file_system_without_locks_is_refused() {
    for error in [37, 95] {
        let memory = Memory::new();
        memory.without_locks(error);
        let found = Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch).unwrap_err();
        assert!(found.to_string().contains("/run/lock"), "{found}");
        assert!(memory.image().files().is_empty());
    }
}

#[test]
fn a_reader_keeps_its_snapshot_while_the_writer_goes_on() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let first = trained(&mut store, &[]);
    let mut reader = Store::read_on(Arc::new(memory.clone()), run()).unwrap();
    let (seen, snapshot) = (Seen::of(&mut reader), reader.snapshot().unwrap());
    for _ in 0..4 {
        trained(&mut store, &[0]);
        assert_eq!(Seen::of(&mut reader), seen);
    }
    store.compact(&mut || Ok(())).unwrap();
    assert_eq!(Seen::of(&mut reader), seen);
    assert_same(&reader.batch(0).unwrap(), &first);
    let head: Head = serde_json::from_str(&snapshot).unwrap();
    assert_eq!(head, reader.head);
    reader.refresh().unwrap();
    assert_eq!(Seen::of(&mut reader), Seen::of(&mut store));
    assert_eq!(reader.iteration(), 5);
}

#[test]
fn a_snapshot_is_found_again_by_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path(), Sync::Never).unwrap();
    let first = trained(&mut store, &[]);
    let snapshot = store.snapshot().unwrap();
    trained(&mut store, &[]);
    let mut reader = Store::open_snapshot(folder.path(), &snapshot).unwrap();
    assert_eq!(reader.iteration(), 1);
    assert_same(&reader.batch(0).unwrap(), &first);
    assert_eq!(reader.batch(1).unwrap_err().kind(), ErrorKind::NotFound);
    let later = snapshot.replace("\"version\":1", "\"version\":77");
    assert_ne!(later, snapshot);
    assert!(Store::open_snapshot(folder.path(), &later).unwrap_err().to_string().contains("commit 77"));
    assert_eq!(Store::open_snapshot(folder.path(), "{").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_store_without_a_commit_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Store::open(folder.path(), Sync::Batch).unwrap();
    let mut reader = Store::open_read_only(folder.path()).unwrap();
    assert_eq!((reader.version(), reader.iteration()), (0, 0));
    assert_eq!(reader.whole_table(Table::Nodes).unwrap().num_rows(), 0);
    drop(writer);
    assert_eq!(Store::open(folder.path(), Sync::Batch).unwrap().version(), 0);
    let nothing = Store::open_read_only(&folder.path().join("nothing")).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::NotFound);
}

#[test]
fn an_iteration_is_closed_with_the_batch_that_was_appended() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let whole = grown(0, 0);
    store.append(&whole, 0, false).unwrap();
    for other in [whole.select_draws(&[0]).unwrap(), whole.select_draws(&[1, 0]).unwrap()] {
        let error = store.close_iteration(&other, "null").unwrap_err();
        assert!(error.to_string().contains("draws appended for iteration 0"), "{error}");
    }
    store.close_iteration(&whole, "null").unwrap();
    assert!(store.close_iteration(&whole, "null").unwrap_err().to_string().contains("iteration 1"));
    store.close_iteration(&Batch::empty().unwrap(), "null").unwrap();
}

#[test]
fn a_batch_comes_back_with_what_its_components_remember() {
    let memory = Memory::new();
    let mut store = open(&memory);
    for (iteration, state) in [(0, r#"{"baseline":[0.5]}"#), (1, "")] {
        let batch = store.rebase(&grown(iteration, 0)).unwrap();
        store.append(&batch, iteration, false).unwrap();
        assert_eq!(store.batch(iteration).unwrap().state(), "", "nothing is computed yet");
        store.close_iteration(&batch.with_state(state), "null").unwrap();
        assert_eq!(store.batch(iteration).unwrap().state(), state);
    }
}

#[test]
fn an_iteration_without_draws_has_a_batch_and_a_broken_off_one_has_none() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let rejected = grown(0, 0).select_draws(&[]).unwrap();
    store.append(&rejected, 0, true).unwrap();
    assert!(!store.has_batch(0).unwrap());
    let batch = rejected.rebase(store.next_ids()).unwrap();
    store.append(&batch, 0, false).unwrap();
    drop(store);
    assert!(!open(&memory).has_batch(0).unwrap(), "it was only queued");
    let mut store = open(&memory);
    store.append(&rejected.rebase(store.next_ids()).unwrap(), 0, false).unwrap();
    store.flush().unwrap();
    drop(store);
    let mut store = open(&memory);
    assert!(store.has_batch(0).unwrap());
    let found = store.batch(0).unwrap();
    assert_eq!((found.num_draws(), found.trajectories().num_rows()), (0, rejected.trajectories().num_rows()));
    store.close_iteration(&found, "null").unwrap();
    assert_eq!(store.iteration(), 1);
}

#[test]
fn trajectories_of_any_age_are_a_batch_of_their_own() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let batches: Vec<Batch> = (0..4).map(|_| trained(&mut store, &[])).collect();
    let wanted = [batches[3].clone(), batches[0].clone()]
        .map(|batch| batch.trajectories()["trajectory_id"].as_primitive::<Int64Type>().value(0));
    let found = store.trajectories(&wanted).unwrap();
    assert_eq!(found.trajectories().num_rows(), 2);
    assert_eq!(found.num_draws(), 0);
    assert_eq!(found.base(), store.next_ids());
    let drawn = with_replay(&mut store, &Batch::empty().unwrap(), &wanted, 4);
    for (draw, batch) in [&batches[3], &batches[0]].into_iter().enumerate() {
        let alone = drawn.select_draws(&[draw as i64]).unwrap();
        let fresh = batch.select_draws(&[0]).unwrap();
        for name in ["token", "behaviour_logprob", "position"] {
            assert_eq!(alone.column(name, Level::Token).unwrap(), fresh.column(name, Level::Token).unwrap());
        }
    }
    let before = Seen::of(&mut store);
    store.append(&drawn, 4, false).unwrap();
    store.flush().unwrap();
    let after = Seen::of(&mut store);
    for (place, folder) in FOLDERS.iter().enumerate() {
        let grows = ["draws", "journal"].contains(folder);
        assert_eq!(before.rows[place] != after.rows[place], grows, "{folder}");
    }
    let error = store.trajectories(&[999]).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("no trajectory 999"), "{error}");
}

#[test]
fn blobs_are_stored_once_and_checked() {
    use sha2::Digest as _;
    let memory = Memory::new();
    let mut store = open(&memory);
    let content: Arc<[u8]> = b"an image".as_slice().into();
    let hash: [u8; 32] = sha2::Sha256::digest(&content).into();
    for seed in 0..2 {
        let batch = grown(0, seed).rebase(store.next_ids()).unwrap();
        store.append(&batch.with_blobs(Arc::new([(hash, content.clone())].into())), 0, false).unwrap();
        assert_eq!(store.blob(&hash).unwrap(), content.to_vec());
    }
    let files: Vec<_> = memory.image().files().into_keys().filter(|path| path.starts_with("/run/blobs")).collect();
    assert_eq!(files.len(), 1);
    assert_eq!(store.blob(&[7; 32]).unwrap_err().kind(), ErrorKind::NotFound);
    let wrong = grown(0, 5).rebase(store.next_ids()).unwrap().with_blobs(Arc::new([([7; 32], content)].into()));
    assert!(store.append(&wrong, 0, false).unwrap_err().to_string().contains("another SHA-256"));
    let mut damaged =
        Store::read_on(Arc::new(Memory::from(memory.image().with_bytes(&files[0], b"other"))), run()).unwrap();
    let error = damaged.blob(&hash).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("bytes 0 to 5"), "{error}");
}
