//! Tests of rollout logs: a kill loses no appended record, and no partial record is returned.

use super::memory_fs::{Crash, Image};
use super::*;
use crate::ErrorKind;
use proptest::prelude::*;

/// Return record number `at` of these tests. Lengths vary.
fn record(at: usize) -> Record {
    let length = [0, 3, 40, 700][at % 4];
    (format!("turn {at}").into_bytes(), (0..length).map(|byte| (byte * 7 + at) as u8).collect())
}

fn records(count: usize) -> Vec<Record> {
    (0..count).map(record).collect()
}

fn fill(log: &RolloutLog, range: std::ops::Range<usize>) -> Result<()> {
    for (name, payload) in range.map(record) {
        assert!(!log.append(&name, &payload)?, "a second is not over");
    }
    Ok(())
}

fn path(iteration: i64) -> std::path::PathBuf {
    run().join(format!("live/{iteration}.records"))
}

#[test]
fn records_come_back_in_their_order_after_the_store_was_opened_again() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    assert!(log.records()?.is_empty());
    fill(&log, 0..5)?;
    assert_eq!(log.records()?, records(5));
    assert_eq!(store.rollout_log(0)?.records()?, records(5), "it is the same one");
    store.close()?;
    for error in [log.append(b"", b"").unwrap_err(), log.sync().unwrap_err(), log.records().unwrap_err()] {
        assert!(error.to_string().contains("is closed: the store is closed"), "{error}");
    }
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    fill(&log, 5..9)?;
    fill(&store.rollout_log(3)?, 0..1)?;
    assert_eq!((log.records()?, store.rollout_log(3)?.records()?), (records(9), records(1)));
    assert!(store.verify(&mut || Ok(()))?.is_empty());
    Ok(())
}

#[test]
fn a_record_is_one_append_to_the_file() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    fill(&log, 0..1)?;
    let before = memory.operations();
    fill(&log, 1..9)?;
    // The file system in memory counts each half of an append.
    assert_eq!(memory.operations() - before, 16);
    log.sync()?;
    log.sync()?;
    assert_eq!(memory.operations() - before, 17, "what is synced is not synced again");
    Ok(())
}

#[test]
fn records_of_a_killed_process_are_synced_too() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    fill(&log, 0..1)?;
    log.sync()?;
    fill(&log, 1..3)?;
    // As if the process was killed.
    drop(store);
    let lost = memory.image().after(Crash::LoseAll, &mut Random::new(0));
    assert_eq!(open(&Memory::from(lost)).rollout_log(0)?.records()?, records(1));
    open(&memory).rollout_log(0)?.sync()?;
    let kept = memory.image().after(Crash::LoseAll, &mut Random::new(0));
    assert_eq!(open(&Memory::from(kept)).rollout_log(0)?.records()?, records(3));
    Ok(())
}

#[test]
fn the_store_says_when_to_sync() -> Result<()> {
    for (sync, due) in [(Sync::Batch, false), (Sync::Always, true), (Sync::Never, false)] {
        let memory = Memory::new();
        let mut store = Store::open_on(Arc::new(memory.clone()), run(), sync)?;
        let log = store.rollout_log(0)?;
        assert_eq!(log.append(b"name", b"payload")?, due);
        let before = memory.operations();
        log.sync()?;
        assert_eq!(memory.operations() - before, usize::from(sync != Sync::Never));
    }
    Ok(())
}

#[test]
fn the_commit_of_the_batch_ends_the_log() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let (log, later) = (store.rollout_log(0)?, store.rollout_log(1)?);
    fill(&log, 0..3)?;
    fill(&later, 0..2)?;
    let partial = grown(0, 5).select_draws(&[])?.rebase(store.next_ids())?;
    store.append(&partial, 0, true)?;
    store.flush()?;
    assert_eq!(log.records()?, records(3), "a part of what was broken off does not end it");
    let batch = grown(0, 1).rebase(store.next_ids())?;
    store.append(&batch, 0, false)?;
    assert_eq!(log.records()?, records(3), "nor does what is not committed");
    store.flush()?;
    assert!(log.append(b"", b"").unwrap_err().to_string().contains("the batch of iteration 0 is committed"));
    assert!(!memory.image().files().contains_key(&path(0)));
    for iteration in [-1, 0] {
        let error = store.rollout_log(iteration).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && error.to_string().contains("its rollout log closed"),
            "{error}"
        );
    }
    store.close_iteration(&batch, "null")?;
    assert_eq!(later.records()?, records(2));
    // An iteration that is closed without a batch ends its log too.
    store.close_iteration(&Batch::empty()?, "null")?;
    assert!(later.records().is_err() && !memory.image().files().contains_key(&path(1)));
    let mut reader = Store::read_on(Arc::new(memory), run())?;
    assert!(reader.rollout_log(2).unwrap_err().to_string().contains("open for reading only"));
    Ok(())
}

#[test]
fn a_log_that_a_kill_left_behind_a_commit_is_not_served() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    fill(&log, 0..3)?;
    let left = memory.image().files()[&path(0)].clone();
    trained(&mut store, &[]);
    let batch = grown(1, 1).rebase(store.next_ids())?;
    store.append(&batch, 1, false)?;
    store.close()?;
    for iteration in [0, 1, 2] {
        memory.write(&path(iteration), &left).unwrap();
    }
    let mut store = open(&memory);
    assert!(store.rollout_log(0).is_err() && store.rollout_log(1).is_err());
    let there: Vec<_> = memory
        .image()
        .files()
        .into_keys()
        .filter(|path| path.ends_with("2.records") || path.ends_with("1.records"))
        .collect();
    assert_eq!(there, [path(2)]);
    assert_eq!(store.rollout_log(2)?.records()?, records(3));
    Ok(())
}

#[test]
fn upkeep_and_other_files_leave_rollout_logs_alone() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    trained(&mut store, &[]);
    trained(&mut store, &[0]);
    let log = store.rollout_log(2)?;
    fill(&log, 0..4)?;
    let theirs = [run().join("live/notes.txt"), run().join("live/07.records"), run().join("live/+1.records")];
    for path in &theirs {
        memory.write(path, b"theirs").unwrap();
    }
    store.compact(&mut || Ok(()))?;
    store.drop_before(1, true, &mut || Ok(()))?;
    fill(&log, 4..6)?;
    assert!(store.verify(&mut || Ok(()))?.is_empty());
    drop(store);
    let mut store = open(&memory);
    assert_eq!(store.rollout_log(2)?.records()?, records(6));
    trained(&mut store, &[]);
    let files = memory.image().files();
    assert!(theirs.iter().all(|path| files.contains_key(path)) && !files.contains_key(&path(2)));
    Ok(())
}

/// Return a store whose log of iteration 0 has the given bytes.
fn with_bytes(bytes: &[u8]) -> (Memory, Store) {
    let memory = Memory::new();
    drop(open(&memory));
    memory.create_folder(&run().join("live")).unwrap();
    memory.write(&path(0), bytes).unwrap();
    let store = open(&memory);
    (memory, store)
}

fn whole(count: usize) -> Vec<u8> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0).unwrap();
    fill(&log, 0..count).unwrap();
    memory.image().files()[&path(0)].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn records_after_damage_are_left_out_and_cut_off(
        place in 0.0..1.0_f64, bit in 0_u8..8, cut in any::<bool>(), garbage in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = whole(9);
        let at = ((bytes.len() - 1) as f64 * place) as usize;
        if cut {
            bytes.truncate(at);
            bytes.extend(&garbage);
        } else {
            bytes[at] ^= 1 << bit;
        }
        let (memory, mut store) = with_bytes(&bytes);
        let log = match store.rollout_log(0) {
            Ok(log) => log,
            Err(error) => {
                prop_assert!(!cut && at == 15 && error.kind() == ErrorKind::Unsupported, "{}", error);
                return Ok(());
            }
        };
        let left = log.records()?;
        prop_assert!(left.len() < 9 && left == records(left.len()), "the records before it");
        let before: usize = 16 + left.iter().map(|(name, payload)| 16 + name.len() + payload.len()).sum::<usize>();
        prop_assert!(at < before.max(16) + 16 + 6 + 700, "no more than that record is lost before it");
        if !cut {
            let found = store.verify(&mut || Ok(()))?;
            prop_assert!(found.iter().all(|found| found.kind == "damage" && found.folder == "live"));
        }
        prop_assert_eq!(memory.image().files()[&path(0)].to_vec(), bytes, "reading changes nothing");
        log.append(b"new", b"record")?;
        let expected: Vec<Record> = left.into_iter().chain([(b"new".to_vec(), b"record".to_vec())]).collect();
        prop_assert_eq!(&log.records()?, &expected);
        drop(store);
        let mut store = open(&memory);
        prop_assert_eq!(store.rollout_log(0)?.records()?, expected);
        prop_assert!(store.verify(&mut || Ok(()))?.is_empty());
    }
}

#[test]
fn lengths_that_no_record_has_are_damage_and_take_no_memory() -> Result<()> {
    let huge = u32::MAX.to_le_bytes();
    for (name, payload) in [(huge, [0; 4]), ([0; 4], huge), (huge, huge)] {
        let mut bytes = whole(2);
        bytes.extend([0; 8]);
        bytes.extend(name);
        bytes.extend(payload);
        bytes.extend([1; 64]);
        let (_, mut store) = with_bytes(&bytes);
        assert_eq!(store.rollout_log(0)?.records()?, records(2));
        let found = store.verify(&mut || Ok(()))?;
        assert!(found[0].message.contains("is damaged in bytes") && found[0].id == Some(0), "{found:?}");
    }
    // A kill leaves a record that is cut off.
    let bytes = whole(4);
    let (_, mut store) = with_bytes(&bytes[..bytes.len() - 1]);
    assert_eq!(store.rollout_log(0)?.records()?, records(3));
    assert!(store.verify(&mut || Ok(()))?.is_empty());
    Ok(())
}

#[test]
fn too_large_records_and_newer_files_are_refused() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    fill(&log, 0..1)?;
    let error = log.append(b"name", &vec![0; 256 << 20]).unwrap_err();
    assert!(error.to_string().contains("name and payload have 268435460 bytes"), "{error}");
    assert_eq!(log.records()?, records(1));
    let newer = [&b"agentrl records2"[..], &[0; 40]].concat();
    let (_, mut store) = with_bytes(&newer);
    assert!(store.rollout_log(0).unwrap_err().to_string().contains("install a newer agentrl_core"));
    assert_eq!(store.verify(&mut || Ok(()))?.len(), 1);
    Ok(())
}

#[test]
fn a_write_that_fails_is_cut_off_and_a_sync_that_fails_ends_the_log() -> Result<()> {
    let memory = Memory::new();
    let mut store = open(&memory);
    let log = store.rollout_log(0)?;
    fill(&log, 0..3)?;
    // Fail in the second half of a record.
    memory.fail(memory.operations() + 1, 28);
    let error = log.append(b"lost", b"record").unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("cannot write /run/live/0.records"), "{error}");
    assert_eq!(log.records()?, records(3));
    fill(&log, 3..6)?;
    assert_eq!(log.records()?, records(6));
    memory.fail(memory.operations(), 5);
    assert!(log.sync().unwrap_err().to_string().contains("cannot sync"));
    assert!(log.append(b"", b"").unwrap_err().to_string().contains("a sync failed"));
    drop(store);
    assert_eq!(open(&memory).rollout_log(0)?.records()?, records(6));
    Ok(())
}

/// Progress acknowledged after a number of operations.
#[derive(Clone, Debug, Default)]
struct Acknowledged {
    operations: usize,
    iteration: i64,
    appended: usize,
    synced: usize,
    committed: bool,
}

/// Run a few iterations with rollout logs: appends, syncs, kills of the store and commits. Returns the acknowledged
/// progress.
fn logged(memory: &Memory, seed: u64) -> Result<Vec<Acknowledged>> {
    let mut random = Random::new(seed << 20);
    let mut acknowledged = vec![Acknowledged::default()];
    let mut now = Acknowledged::default();
    let mut store = Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch)?;
    for iteration in 0..3 {
        now = Acknowledged { iteration, ..Acknowledged::default() };
        let mut log = store.rollout_log(iteration)?;
        for _ in 0..2 + random.below(5) {
            match random.below(6) {
                0 => {
                    log.sync()?;
                    now.synced = now.appended;
                }
                1 => {
                    drop(store);
                    store = Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch)?;
                    log = store.rollout_log(iteration)?;
                    assert_eq!(log.records()?, records(now.appended));
                }
                _ => {
                    fill(&log, now.appended..now.appended + 1)?;
                    now.appended += 1;
                }
            }
            now.operations = memory.operations();
            acknowledged.push(now.clone());
        }
        let batch = grown(iteration, seed).rebase(store.next_ids())?;
        store.append(&batch, iteration, false)?;
        store.flush()?;
        now.committed = true;
        now.operations = memory.operations();
        acknowledged.push(now.clone());
        store.close_iteration(&batch, "null")?;
    }
    now.operations = memory.operations();
    acknowledged.push(now);
    Ok(acknowledged)
}

fn check(image: Image, crash: Crash, acknowledged: &Acknowledged, what: &str) {
    let memory = Memory::from(image);
    let mut store = open(&memory);
    let going_on = store.iteration() + i64::from(store.has_batch(store.iteration()).unwrap());
    assert!(
        going_on >= acknowledged.iteration + i64::from(acknowledged.committed),
        "{what}: a batch that was committed is there"
    );
    for iteration in 0..going_on {
        assert!(store.rollout_log(iteration).is_err(), "{what}");
        assert!(!memory.image().files().contains_key(&path(iteration)), "{what}: {iteration}");
    }
    let log = store.rollout_log(going_on).unwrap();
    let found = log.records().unwrap();
    assert_eq!(found, records(found.len()), "{what}: whole records in their order");
    if going_on == acknowledged.iteration {
        let least = if crash == Crash::Kill { acknowledged.appended } else { acknowledged.synced };
        assert!(
            (least..=acknowledged.appended + 1).contains(&found.len()),
            "{what}: {} of {acknowledged:?}",
            found.len()
        );
    } else if going_on > acknowledged.iteration + 1 {
        assert!(found.is_empty(), "{what}");
    }
    fill(&log, found.len()..found.len() + 2).unwrap();
    assert_eq!(log.records().unwrap(), records(found.len() + 2), "{what}");
    drop(store);
    assert_eq!(open(&memory).rollout_log(going_on).unwrap().records().unwrap(), records(found.len() + 2), "{what}");
}

#[test]
fn every_crash_point_gives_whole_records_and_none_of_a_committed_iteration() {
    let mut points = 0;
    for seed in 0..12 {
        let memory = Memory::new();
        memory.record();
        let acknowledged = logged(&memory, seed).unwrap();
        let mut random = Random::new(seed);
        for (at, image) in memory.history().into_iter().enumerate() {
            let done =
                &acknowledged[acknowledged.partition_point(|acknowledged| acknowledged.operations <= at).max(1) - 1];
            for crash in [Crash::Kill, Crash::LoseAll, Crash::LoseSome, Crash::LoseSome] {
                let what = format!("workload {seed} stopped before operation {at} ({crash:?})");
                check(image.after(crash, &mut random), crash, done, &what);
                points += 1;
            }
        }
    }
    assert!(points > 2000, "{points}");
}
