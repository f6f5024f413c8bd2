//! Merging, dropping, verifying.

use super::*;
use crate::ErrorKind;

#[expect(clippy::unnecessary_wraps, reason = "what long work asks between its steps")]
fn go_on() -> Result<()> {
    Ok(())
}

/// A store with some files in each folder: small last files are only replaced where this is not set back.
fn scattered(memory: &Memory, iterations: usize, replayed: &[i64]) -> (Store, Vec<Batch>) {
    let mut store = open(memory);
    let mut batches = Vec::new();
    for iteration in 0..iterations {
        let ids: &[i64] = if iteration == 0 { &[] } else { replayed };
        batches.push(trained(&mut store, ids));
    }
    (store, batches)
}

#[test]
fn small_files_stay_few() {
    let memory = Memory::new();
    let (store, _) = scattered(&memory, 40, &[0]);
    let files = store.files.segments.values().map(Vec::len).max().unwrap();
    assert_eq!(files, 1);
    let manifests = memory.image().files().into_keys().filter(|path| path.starts_with("/run/manifest")).count();
    assert_eq!(manifests, 1);
}

#[test]
fn merging_changes_files_and_nothing_else() {
    let memory = Memory::new();
    let (mut store, batches) = scattered(&memory, 3, &[0]);
    // Other columns from here on: their files stay apart.
    let batch = grown(3, 3).rebase(store.next_ids()).unwrap();
    store.append(&batch, 3, false).unwrap();
    let extra = batch.with_column("other", Level::Draw, Numbers::U8(vec![1; batch.num_draws()])).unwrap();
    store.close_iteration(&extra, &serde_json::Value::Null).unwrap();
    assert_eq!(store.files.of("draw_columns").len(), 2);
    let seen = Seen::of_parts(&mut store);
    store.split_for_test();
    assert!(store.files.of("nodes").len() > 2);
    assert_eq!(Seen::of_parts(&mut store), seen);
    let fewer = store.compact(&mut go_on).unwrap();
    assert!(fewer > 5);
    assert_eq!((store.files.of("nodes").len(), store.files.of("draw_columns").len()), (1, 2));
    assert_eq!(Seen::of_parts(&mut store), seen);
    assert_eq!(store.compact(&mut go_on).unwrap(), 0);
    for (iteration, batch) in batches.iter().enumerate() {
        assert_same(&store.batch(iteration as i64).unwrap(), batch);
    }
    assert!(store.verify(&mut go_on).unwrap().is_empty());
}

#[test]
fn old_iterations_are_dropped_and_what_later_ones_need_stays() {
    let memory = Memory::new();
    let (mut store, batches) = scattered(&memory, 6, &[0, 1]);
    let error = store.drop_before(3, false, &mut go_on).unwrap_err();
    assert!(
        error.to_string().contains("trajectory 0, which is drawn again") && error.to_string().contains("rewrite=True")
    );
    let mut reader = Store::read_on(Arc::new(memory.clone()), run()).unwrap();
    store.drop_before(3, true, &mut go_on).unwrap();
    for (iteration, batch) in batches.iter().enumerate() {
        let iteration = iteration as i64;
        assert_eq!(store.has_batch(iteration).unwrap(), iteration >= 3);
        if iteration < 3 {
            assert_eq!(store.batch(iteration).unwrap_err().kind(), ErrorKind::NotFound);
        } else {
            let found = store.batch(iteration).unwrap();
            for table in Table::ALL {
                assert_eq!(found.table(table), batch.table(table), "{}", table.name());
            }
        }
    }
    assert!(store.verify(&mut go_on).unwrap().is_empty());
    let error = reader.batch(4).unwrap_err();
    assert!(error.to_string().contains("call refresh()"), "{error}");
    reader.refresh().unwrap();
    assert_same(&reader.batch(4).unwrap(), &batches[4]);
    // Every row that stays is one that was there, and the run goes on.
    assert_eq!(store.state(), &serde_json::json!({"closed": 5}));
    let last = trained(&mut store, &[0, 1]);
    assert_same(&store.batch(6).unwrap(), &last);
    drop(store);
    let mut store = open(&memory);
    assert_same(&store.batch(6).unwrap(), &last);
    assert!(store.drop_before(99, true, &mut go_on).unwrap_err().to_string().contains("7 iterations that are closed"));
    store.drop_before(7, false, &mut go_on).unwrap();
    assert_eq!(store.whole_table(Table::Nodes).unwrap().num_rows(), 0);
    assert!(store.whole_table(Table::Tasks).unwrap().num_rows() <= 3, "the latest row of each task");
    trained(&mut store, &[]);
    assert!(store.verify(&mut go_on).unwrap().is_empty());
}

#[test]
fn long_work_is_broken_off_between_its_steps() {
    let memory = Memory::new();
    let (mut store, batches) = scattered(&memory, 4, &[0]);
    store.split_for_test();
    for allowed in 0..40 {
        for kind in 0..3 {
            let mut left = allowed;
            let mut stop = || {
                left -= 1;
                if left < 0 { Err(crate::Error::new(ErrorKind::Internal, "stopped")) } else { Ok(()) }
            };
            let _ = match kind {
                0 => store.compact(&mut stop).map(drop),
                1 => store.drop_before(2, true, &mut stop),
                _ => store.verify(&mut stop).map(drop),
            };
            assert_same(&store.batch(3).unwrap(), &batches[3]);
        }
    }
    assert_eq!(store.head.dropped, 2);
    assert!(store.verify(&mut go_on).unwrap().is_empty());
}

#[test]
fn verify_finds_what_is_wrong() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let batch = grown(0, 0);
    let twice = NewDraws {
        trajectory_ids: &[0],
        group_ids: None,
        source: "replay",
        probability: Some(&[0.5]),
        old_logprob: "none",
        reason: None,
        iteration: None,
    };
    store.append(&batch.draw(&twice).unwrap(), 0, false).unwrap();
    let found = store.verify(&mut go_on).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].folder.as_str(), found[0].kind), ("draws", "duplicate"));
    assert!(found[0].message.contains("trains trajectory 0 twice in group 0"), "{}", found[0].message);
}

impl Seen {
    /// With computed columns part by part, since their columns can differ.
    fn of_parts(store: &mut Store) -> Vec<Vec<RecordBatch>> {
        let rows = FOLDERS.iter().map(|folder| {
            let parts = store.all_rows(folder).unwrap();
            parts.iter().flat_map(|part| (0..part.num_rows()).map(|row| part.slice(row, 1))).collect()
        });
        rows.collect()
    }
}

impl Store {
    /// Every row of every folder in a file of its own.
    fn split_for_test(&mut self) {
        let mut commit = commit::Commit::begin(self);
        for &folder in FOLDERS.iter() {
            let rows = self.all_rows(folder).unwrap();
            let mut row = self.files.of(folder).first().map_or(0, |segment| segment.first_row);
            commit.replace(self, folder, |_| true);
            for part in rows.iter().flat_map(|part| (0..part.num_rows()).map(|row| part.slice(row, 1))) {
                let rows = part.num_rows() as u64;
                commit.seal(self, folder, commit::runs(vec![part]), row).unwrap();
                row += rows;
            }
        }
        commit.finish(self).unwrap();
    }
}
