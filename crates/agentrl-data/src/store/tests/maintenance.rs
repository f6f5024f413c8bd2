//! Tests of merging, dropping and verifying.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int32Array, Int64Array};

use super::*;
use crate::ErrorKind;
use crate::batch::i64s;
use crate::schema::Source;

#[expect(clippy::unnecessary_wraps, reason = "what long work asks between its steps")]
fn go_on() -> Result<()> {
    Ok(())
}

/// Return a store after some iterations, and their batches.
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
fn merging_changes_files_and_nothing_else() {
    let memory = Memory::new();
    let (mut store, batches) = scattered(&memory, 3, &[0]);
    // Add other columns from here on, and change the type of one: that file stays separate.
    let batch = grown(3, 3).rebase(store.next_ids()).unwrap();
    store.append(&batch, 3, false).unwrap();
    let extra = batch.with_column("other", Level::Draw, Numbers::U8(vec![1; batch.num_draws()])).unwrap();
    let extra = extra.with_column("advantage", Level::Draw, Numbers::F64(vec![0.5; batch.num_draws()])).unwrap();
    store.close_iteration(&extra, "null").unwrap();
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
    // A reader of an older snapshot can read the rows that are kept. It cannot read a table, because rows are missing.
    for (iteration, batch) in batches.iter().enumerate().skip(3) {
        assert!(reader.has_batch(iteration as i64).unwrap());
        assert_same(&reader.batch(iteration as i64).unwrap(), batch);
    }
    assert!(reader.batch(2).unwrap_err().to_string().contains("those from 3 on are kept"));
    assert!(reader.trajectories(&[2]).unwrap_err().to_string().contains("iterations below 3 were dropped"));
    assert_eq!(reader.trajectories(&[1]).unwrap().trajectories().num_rows(), 1);
    let error = reader.whole_table(Table::Nodes).unwrap_err();
    assert!(error.to_string().contains("call refresh()"), "{error}");
    reader.refresh().unwrap();
    assert_same(&reader.batch(4).unwrap(), &batches[4]);
    // No row was changed, and the run continues.
    assert_eq!(store.state(), serde_json::json!({"closed": 5}).to_string());
    let last = trained(&mut store, &[0, 1]);
    assert_same(&store.batch(6).unwrap(), &last);
    drop(store);
    let mut store = open(&memory);
    assert_same(&store.batch(6).unwrap(), &last);
    assert!(store.drop_before(99, true, &mut go_on).unwrap_err().to_string().contains("only 7 iterations are closed"));
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
fn verify_finds_defects() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let batch = grown(0, 0);
    let twice = NewDraws {
        trajectory_ids: &[0],
        group_ids: None,
        source: "replay",
        probability: None,
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
    /// Return each row separately, because the columns of computed parts can differ.
    fn of_parts(store: &mut Store) -> Vec<Vec<RecordBatch>> {
        let rows = FOLDERS.iter().map(|folder| {
            let parts = store.all_rows(folder).unwrap();
            parts.iter().flat_map(|part| (0..part.num_rows()).map(|row| part.slice(row, 1))).collect()
        });
        rows.collect()
    }
}

impl Store {
    /// Put every row of every folder into a file of its own.
    fn split_for_test(&mut self) {
        let mut commit = commit::Commit::begin(self);
        for &folder in FOLDERS.iter() {
            let rows = self.all_rows(folder).unwrap();
            let first = self.files.of(folder).first().map_or(0, |segment| segment.first_row);
            commit.replace(self, folder, |_| true);
            let parts = rows.iter().flat_map(|part| (0..part.num_rows()).map(|row| part.slice(row, 1)));
            for (row, part) in (first..).zip(parts) {
                commit.seal(self, folder, vec![part], row).unwrap();
            }
        }
        commit.finish(self).unwrap();
    }

    /// Commit rows without any checks.
    fn commit_for_test(&mut self, rows: Vec<(&'static str, RecordBatch)>) {
        let mut commit = commit::Commit::begin(self);
        for (folder, rows) in rows {
            commit.seal(self, folder, vec![rows], 0).unwrap();
        }
        commit.finish(self).unwrap();
    }
}

/// Trajectories with a rewritten context, with a rollback, and spliced from two others. Their rewards have names, and
/// their entropies an estimator. Trajectory `stored` is drawn again and forked.
fn rewritten(iteration: i64, stored: Option<(&Batch, i64)>) -> Batch {
    let mut forest = Forest::new(iteration, 1)
        .with_reward_components(vec!["answer".to_owned(), "format".to_owned()])
        .with_entropies("top_10");
    let paid = StepOutcome { rewards: Some(vec![1.0, 0.5]), ..StepOutcome::default() };
    let act = |forest: &mut Forest, trajectory, tokens: Vec<i32>| {
        let (logprobs, entropies) = (vec![-0.5; tokens.len()], Some(vec![0.25; tokens.len()]));
        forest.append(trajectory, NewNode { entropies, ..NewNode::action(tokens, logprobs) }).unwrap()
    };
    forest.add_group(0, "task").unwrap();
    let mut running = Vec::new();
    for member in 0..3 {
        let trajectory = forest.start(0, member).unwrap();
        forest.append(trajectory, NewNode::prompt(vec![1, 2, 3])).unwrap();
        let node = act(&mut forest, trajectory, vec![4, 5 + member as i32, 6]);
        match member {
            0 => {
                forest.step(trajectory, &paid).unwrap();
                assert_eq!(forest.rewrite(trajectory, &[1, 9, 9, 9], &[], None).unwrap(), 1);
                act(&mut forest, trajectory, vec![7]);
                running.push(trajectory);
            }
            1 => running.push(forest.rollback(trajectory, node, Some(1)).unwrap()),
            _ => {
                forest.step(trajectory, &paid).unwrap();
                running.push(forest.splice(running[1], (None, None), trajectory, (node, 1)).unwrap());
                running.push(trajectory);
            }
        }
    }
    if let Some((batch, id)) = stored {
        let adopted = forest.adopt(0, batch, id, Some(Source::Replay)).unwrap();
        let forked = forest.fork(adopted, None, None).unwrap();
        forest.append(forked, NewNode::observation(vec![8])).unwrap();
        running.push(forked);
    }
    for trajectory in running {
        act(&mut forest, trajectory, vec![3, 3]);
        forest.step(trajectory, &paid).unwrap();
        let rewards = Some(vec![1.0, 0.0]);
        forest.finish(trajectory, Finish { reward: Some(1.0), rewards, ..Finish::default() }).unwrap();
    }
    forest.freeze().unwrap()
}

fn assert_described(batch: &Batch) {
    let names = batch.reward_components().unwrap().unwrap_or_default();
    assert_eq!(names, ["answer", "format"]);
    assert_eq!(batch.entropies().as_deref(), Some("top_10"));
}

#[test]
fn rewritten_contexts_and_what_names_rewards_survive_everything() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut batches: Vec<Batch> = Vec::new();
    for iteration in 0..4 {
        // The context of the first trajectory was rewritten, so its first step does not end on the path to its leaf.
        let stored = (iteration > 0).then(|| store.trajectories(&[0]).unwrap());
        let batch = rewritten(iteration, stored.as_ref().map(|stored| (stored, 0)));
        // A batch without rewards or entropies has no metadata about them.
        let batch = Batch::concat(&[Batch::empty().unwrap(), batch, grown(iteration, 7)]).unwrap();
        let batch = batch.rebase(store.next_ids()).unwrap();
        store.append(&batch, iteration, false).unwrap();
        let batch = credited(&batch, iteration as u64);
        store.close_iteration(&batch, "null").unwrap();
        assert_same(&store.batch(iteration).unwrap(), &batch);
        batches.push(batch);
    }
    assert!(store.verify(&mut go_on).unwrap().is_empty());
    store.split_for_test();
    store.compact(&mut go_on).unwrap();
    let error = store.drop_before(2, false, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("trajectory 0, which is drawn again"), "{error}");
    store.drop_before(2, true, &mut go_on).unwrap();
    assert!(store.verify(&mut go_on).unwrap().is_empty());
    drop(store);
    let mut store = open(&memory);
    for iteration in [2, 3] {
        let found = store.batch(iteration).unwrap();
        assert_same(&found, &batches[iteration as usize]);
        let parts = found.to_bytes().unwrap().into_iter().map(arrow_buffer::Buffer::from).collect::<Vec<_>>();
        for batch in
            [&found, &Batch::from_bytes(&parts).unwrap(), &Batch::concat(std::slice::from_ref(&found)).unwrap()]
        {
            assert_described(batch);
        }
    }
    let again = store.trajectories(&[0]).unwrap();
    assert_described(&again);
    assert_described(&Batch::concat(&[grown(9, 9), again]).unwrap());
}

#[test]
fn an_iteration_draws_again_what_it_appended_before() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut later = 0;
    for (write, partial) in [false, true, false, false].into_iter().enumerate() {
        if partial {
            later = store.next_ids().trajectory;
        }
        // The last two draw a trajectory of the partial append, and one of the first append of the iteration.
        let ids = if write < 2 { Vec::new() } else { vec![0, later] };
        let mut fresh = grown(0, write as u64);
        if partial {
            fresh = fresh.select_draws(&[]).unwrap();
        }
        let new = NewDraws {
            trajectory_ids: &ids,
            group_ids: Some(&vec![90 + write as i64; ids.len()]),
            source: "replay",
            probability: None,
            old_logprob: "behaviour",
            reason: None,
            iteration: Some(0),
        };
        let batch = Batch::concat(&[fresh, store.trajectories(&ids).unwrap()]).unwrap().draw(&new).unwrap();
        store.append(&batch.rebase(store.next_ids()).unwrap(), 0, partial).unwrap();
    }
    let found = store.batch(0).unwrap();
    let drawn = i64s(found.draws(), "trajectory_id").unwrap().values();
    let ids = i64s(found.trajectories(), "trajectory_id").unwrap().values();
    assert_eq!(ids.iter().copied().collect::<std::collections::BTreeSet<_>>(), drawn.iter().copied().collect());
    assert_eq!(drawn.iter().filter(|&&id| id == 0).count(), 3);
    assert_eq!(drawn.iter().filter(|&&id| id == later).count(), 2);
    assert!(store.verify(&mut go_on).unwrap().is_empty());
    store.close_iteration(&credited(&found, 1), "null").unwrap();
    assert_same(&store.batch(0).unwrap(), &credited(&found, 1));
}

#[test]
fn numbers_of_a_state_come_back_digit_by_digit() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let text = r#"{"$serde_json::private::Number":"5","float":0.9150125185977553,"large":340282366920938463463374607431768211455}"#;
    store.close_iteration(&Batch::empty().unwrap(), text).unwrap();
    assert_eq!(store.state(), text);
    drop(store);
    assert_eq!(open(&memory).state(), text);
    let reader = Store::read_on(Arc::new(memory.clone()), run()).unwrap();
    let snapshot: Head = serde_json::from_str(&reader.snapshot().unwrap()).unwrap();
    assert_eq!(snapshot, reader.head);
}

#[test]
fn rewards_of_different_components_are_not_mixed() {
    let mut forest = Forest::new(0, 1).with_reward_components(vec!["other".to_owned()]);
    forest.add_group(0, "task").unwrap();
    let trajectory = forest.start(0, 0).unwrap();
    forest.append(trajectory, NewNode::prompt(vec![1])).unwrap();
    forest.append(trajectory, NewNode::action(vec![2], vec![-0.5])).unwrap();
    forest.step(trajectory, &StepOutcome { rewards: Some(vec![1.0]), ..StepOutcome::default() }).unwrap();
    forest.finish(trajectory, Finish { reward: Some(1.0), ..Finish::default() }).unwrap();
    let error = Batch::concat(&[rewritten(0, None), forest.freeze().unwrap()]).unwrap_err();
    let message = r#"["answer","format"] and ["other"]; make all with the same Forest(reward_components=…)"#;
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn verify_follows_every_context() {
    let whole = rewritten(0, None);
    let broken = |table: Table, column: &str, row: usize, value: i64| {
        let mut tables = Table::ALL.map(|table| whole.table(table).clone());
        let rows = &mut tables[table as usize];
        let place = rows.schema().index_of(column).unwrap();
        let mut columns = rows.columns().to_vec();
        columns[place] = match columns[place].as_primitive_opt::<Int64Type>() {
            Some(ids) => Arc::new(Int64Array::from_iter_values(
                ids.values().iter().enumerate().map(|(at, &id)| if at == row { value } else { id }),
            )),
            None => {
                Arc::new((0..rows.num_rows()).map(|at| (at == row).then_some(value as i32)).collect::<Int32Array>())
            }
        };
        *rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
        let memory = Memory::new();
        let mut store = open(&memory);
        let write = tables.into_iter().zip(Table::ALL).map(|(rows, table)| (table.name(), rows)).collect();
        store.commit_for_test(write);
        store.verify(&mut go_on).unwrap()
    };
    // Row 0 of `steps` acts in the first context of trajectory 0, and row 1 in the second.
    let second = i64s(whole.steps(), "node_id").unwrap().value(1);
    let cases = [
        (Table::Steps, "first_node_id", second, "is not above node"),
        (Table::Steps, "end", 99, "of which it uses 99"),
        (Table::Trajectories, "leaf_end", 99, "of which it uses 99"),
        (Table::Trajectories, "leaf_node_id", 999, "node 999, is not there"),
    ];
    for (table, column, value, message) in cases {
        let found = broken(table, column, 0, value);
        assert_eq!(found.len(), 1, "{column}: {found:?}");
        assert_eq!((found[0].folder.as_str(), found[0].kind, found[0].id), (table.name(), "reference", Some(0)));
        assert!(found[0].message.contains(message), "{}", found[0].message);
    }
    assert_eq!(broken(Table::Trajectories, "group_id", 0, 0), []);
}

/// Compact, and call `other` each time after the store was entered. Returns how many times it was entered.
fn compacted_beside(store: &mut Store, mut other: impl FnMut(&mut Store, usize)) -> usize {
    let mut entered = 0;
    let mut enter = |work: &mut dyn FnMut(&mut Store) -> Result<()>| {
        work(store)?;
        other(store, entered);
        entered += 1;
        Ok(())
    };
    compact(&mut enter, &mut go_on).unwrap();
    entered
}

#[test]
fn merging_goes_on_beside_commits() {
    let memory = Memory::new();
    let (mut store, mut batches) = scattered(&memory, 3, &[0]);
    store.split_for_test();
    let files = |store: &Store| store.files.segments.values().map(Vec::len).sum::<usize>();
    let before = files(&store);
    // Commit in the pauses, which merges some of the files that the compaction is reading.
    let mut reader = Store::read_on(Arc::new(memory.clone()), run()).unwrap();
    let seen = Seen::of_parts(&mut reader);
    let mut tried_twice = None;
    let entered = compacted_beside(&mut store, |store, turn| {
        if turn % 3 == 1 {
            batches.push(trained(store, &[0]));
        }
        if turn == 2 {
            // As if another thread compacted too.
            let other = store.writer.as_ref().unwrap().compacting.clone();
            tried_twice = Some(store.compact(&mut go_on).unwrap());
            drop(other);
        }
    });
    assert_eq!(tried_twice, Some(0), "one merges at a time");
    assert!(entered > 10 && batches.len() > 5, "{entered} pauses");
    assert!(files(&store) < before, "{} files after {before}", files(&store));
    assert_eq!(Seen::of_parts(&mut reader), seen, "a reader stays with what it sees");
    for (iteration, batch) in batches.iter().enumerate() {
        assert_same(&store.batch(iteration as i64).unwrap(), batch);
    }
    assert!(store.verify(&mut go_on).unwrap().is_empty());
    let left = memory.image().files().into_keys();
    assert_eq!(left.filter(|path| path.extension().is_some_and(|end| end == "tmp")).count(), 0);
}

#[test]
fn rows_dropped_during_a_merge_stay_dropped() {
    for turn in 0..12 {
        let memory = Memory::new();
        let (mut store, batches) = scattered(&memory, 4, &[0]);
        store.split_for_test();
        compacted_beside(&mut store, |store, at| {
            if at == turn {
                store.drop_before(3, true, &mut go_on).unwrap();
            }
        });
        assert!(!store.has_batch(0).unwrap() && store.verify(&mut go_on).unwrap().is_empty(), "turn {turn}");
        let found = store.batch(3).unwrap();
        for table in Table::ALL {
            assert_eq!(found.table(table), batches[3].table(table), "turn {turn}: {}", table.name());
        }
    }
}

#[test]
fn bounds_of_files_are_those_of_their_rows() {
    let memory = Memory::new();
    let (store, _) = scattered(&memory, 20, &[0]);
    let mut compared = 0;
    for &folder in FOLDERS.iter() {
        for segment in store.files.of(folder).to_vec() {
            let bounds = segment.bounds(folder);
            let rows = store.whole_rows(folder, &segment).unwrap();
            for name in ["iteration", "group_id", "trajectory_id", "node_id", "draw_id"] {
                let columns: Option<Vec<_>> = rows.iter().map(|part| part.column_by_name(name)).collect();
                let Some(columns) = columns else { continue };
                let values: Vec<i64> =
                    columns.iter().flat_map(|column| column.as_primitive::<Int64Type>().iter().flatten()).collect();
                // Bounds exist for the key of a folder and for filter columns.
                if let Some(bounds) = bounds.get(name) {
                    assert_eq!(Some(&bounds.0), values.iter().min(), "{folder}.{name}");
                    assert_eq!(Some(&bounds.1), values.iter().max(), "{folder}.{name}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 15, "{compared}");
    for (folder, name) in [("nodes", "group_id"), ("trajectories", "iteration"), ("draws", "trajectory_id")] {
        assert!(store.files.of(folder)[0].bounds(folder).contains_key(name), "{folder}.{name}");
    }
    // The manifest has the bounds, so nothing else is read for them.
    let before = memory.bytes_read();
    let reader = Store::read_on(Arc::new(memory.clone()), run()).unwrap();
    let manifest = memory.bytes_read() - before;
    assert_eq!(reader.files, store.files);
    assert!(reader.files.of("nodes")[0].bounds("nodes").contains_key("group_id"));
    assert_eq!(memory.bytes_read() - before, manifest);
}
