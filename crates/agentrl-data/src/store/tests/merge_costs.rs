//! Tests of growth: bytes written per byte kept, number of files per row, and rows with other columns in the same
//! files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::merge_policy::{merged_with, worth_merging};
use super::super::segment::Segment;
use super::*;
use crate::batch::i64s;

/// Four trajectories of several hundred tokens, like those of a small iteration.
fn small(iteration: i64) -> Batch {
    let mut forest = Forest::new(iteration, 1);
    forest.add_group(0, "task").unwrap();
    for member in 0..4 {
        let trajectory = forest.start(0, member).unwrap();
        forest.append(trajectory, NewNode::prompt((0..200).collect())).unwrap();
        for _ in 0..3 {
            forest.append(trajectory, NewNode::action(vec![iteration as i32; 200], vec![-0.5; 200])).unwrap();
            forest.step(trajectory, &StepOutcome::default()).unwrap();
        }
        forest.finish(trajectory, Finish { reward: Some(1.0), ..Finish::default() }).unwrap();
    }
    forest.freeze().unwrap()
}

/// Run an iteration with two commits, as a training loop does.
fn train(store: &mut Store) {
    let iteration = store.iteration();
    let batch = store.rebase(&small(iteration)).unwrap();
    store.append(&batch, iteration, false).unwrap();
    store.flush().unwrap();
    let state = serde_json::json!({"iteration": iteration, "metrics": {"loss": 0.5}}).to_string();
    store.close_iteration(&credited(&batch, 1), &state).unwrap();
}

fn kept(memory: &Memory) -> usize {
    memory.image().files().values().map(|bytes| bytes.len()).sum()
}

#[test]
fn small_commits_are_written_few_times() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let (mut most_files, mut halves) = (0, Vec::new());
    for _ in 0..2 {
        let before = memory.written();
        for _ in 0..400 {
            train(&mut store);
            let files = store.files.segments.values().map(Vec::len).max().unwrap();
            most_files = most_files.max(files);
        }
        halves.push(memory.written() - before);
    }
    let (written, kept) = (halves.iter().sum::<u64>(), kept(&memory) as u64);
    assert!(written <= 6 * kept, "{written} bytes written for {kept}");
    // Each order of magnitude rewrites a row once.
    assert!(halves[1] as f64 <= 1.5 * halves[0] as f64, "the {halves:?} bytes of both halves");
    // At most seven files of each order of magnitude.
    assert!((8..=21).contains(&most_files), "{most_files}");
    assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
    assert_eq!(store.batch(17).unwrap().num_draws(), 4);
}

#[test]
fn merging_all_the_time_writes_a_row_few_times() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let (mut most_files, mut halves) = (0, Vec::new());
    for _ in 0..2 {
        let mut written = 0;
        for _ in 0..150 {
            train(&mut store);
            let before = memory.written();
            store.compact(&mut || Ok(())).unwrap();
            written += memory.written() - before;
            most_files = most_files.max(store.files.segments.values().map(Vec::len).max().unwrap());
        }
        halves.push(written);
    }
    // Each merge at least doubles the largest file. An iteration adds 26 kB, and all iterations 8 MB.
    let kept = kept(&memory) as u64;
    assert!(kept > 6 << 20 && halves[0] > kept / 2, "{kept} bytes kept, {halves:?} written");
    assert!(halves[1] <= 2 * halves[0] && halves[1] <= 6 * kept, "{kept} bytes kept, {halves:?} written");
    assert!((2..=12).contains(&most_files), "{most_files}");
    assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
    assert_eq!(store.batch(17).unwrap().num_draws(), 4);
}

/// Return a file of `bytes` bytes with as many rows.
fn of_bytes(first_row: u64, bytes: u64) -> Segment {
    let written =
        serde_json::json!({"first_row": first_row, "commit": 1, "sealed": [bytes, [0, 0], [bytes - 1, bytes, 0]]});
    serde_json::from_value(written).unwrap()
}

/// Return consecutive files of the given sizes.
fn of_sizes(sizes: &[u64]) -> Vec<Segment> {
    let mut row = 0;
    let file = |&bytes: &u64| {
        row += bytes;
        of_bytes(row - bytes, bytes)
    };
    sizes.iter().map(file).collect()
}

#[test]
fn a_merge_is_worth_it_where_the_largest_file_doubles() {
    let k = 1 << 10;
    let groups: [(&[u64], Option<std::ops::Range<usize>>); 9] = [
        (&[], None),
        (&[100 * k], None),
        (&[100 * k, 100 * k], Some(0..2)),
        (&[100 * k, 99 * k], None),
        // 100 + 60 + 40 = 2 * 100.
        (&[100 * k, 60 * k, 40 * k], Some(0..3)),
        (&[1000 * k, 600 * k, 300 * k, 50 * k], None),
        // The first does not double: 100 + 3 * 32 < 2 * 100, because a small file counts as 32. The others do.
        (&[100 * k, 30 * k, 20 * k, k], Some(1..4)),
        // No file is larger than 64 MB: 40 + 30 is too much, 30 + 30 is not.
        (&[40 << 20, 30 << 20, 30 << 20], Some(1..3)),
        (&[64 << 20, k, k], Some(1..3)),
    ];
    for (sizes, expected) in groups {
        assert_eq!(worth_merging(&of_sizes(sizes)), expected, "{sizes:?}");
    }
    // The rows between the two files were dropped.
    assert_eq!(worth_merging(&[of_bytes(0, 10), of_bytes(11, 10)]), None);
}

#[test]
fn ten_thousand_commits_are_merged_in_few_files_and_few_times() {
    for (every, seed) in [(1, 1), (7, 2), (1000, 3)] {
        let (mut random, mut files, mut rewritten, mut most_files) = (Random::new(seed), Vec::<Segment>::new(), 0, 0);
        let mut merge = |files: &mut Vec<Segment>, from: usize, to: usize, more: u64| {
            let first_row = files.get(from).map_or(0, |file: &Segment| file.first_row);
            let old: u64 = files.drain(from..to).map(|file| file.bytes()).sum();
            files.insert(from, of_bytes(first_row, old + more));
            rewritten += old;
        };
        for commit in 0..10_000 {
            let bytes = (1 << 10) + random.below(60 << 10) as u64;
            let end = files.last().map_or(0, Segment::end_row);
            let count = merged_with(&files, bytes, end);
            let from = files.len() - count;
            if count == 0 {
                files.push(of_bytes(end, bytes));
            } else {
                let to = files.len();
                merge(&mut files, from, to, bytes);
            }
            while commit % every == 0
                && let Some(group) = worth_merging(&files)
            {
                merge(&mut files, group.start, group.end, 0);
            }
            most_files = most_files.max(files.len());
        }
        let total: u64 = files.iter().map(Segment::bytes).sum();
        // A file begins with 1 kB to 61 kB and ends with 64 MB, so it doubles at most 16 times.
        let times = rewritten as f64 / total as f64;
        assert!((1.0..=12.0).contains(&times), "{times} times each byte, merging every {every} commits");
        // Full files are at least half full, and before them are at most 7 files of each of 5 orders.
        let full = total / (32 << 20);
        assert!(most_files as u64 <= full + 35, "{most_files} files of {total} bytes, merging every {every} commits");
    }
}

#[test]
fn a_name_never_stands_for_other_bytes() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut names: BTreeMap<PathBuf, Arc<[u8]>> = BTreeMap::new();
    let mut look = |memory: &Memory| {
        for (path, bytes) in memory.image().files() {
            if path.extension().is_some_and(|ending| ending == "arrow") {
                let first = names.entry(path.clone()).or_insert_with(|| bytes.clone());
                assert_eq!(*first, bytes, "{}", path.display());
            }
        }
        names.len()
    };
    let mut count = 0;
    for iteration in 0..24 {
        trained(&mut store, if iteration == 0 { &[] } else { &[0] });
        look(&memory);
        if iteration % 5 == 4 {
            store.compact(&mut || Ok(())).unwrap();
            look(&memory);
        }
        if iteration % 7 == 6 {
            // Carried rows get the numbers of other rows.
            store.drop_before(iteration, true, &mut || Ok(())).unwrap();
            count = look(&memory);
        }
    }
    assert!(count > 100, "{count}");
}

/// Add columns that change from iteration to iteration: their names, their levels, and their metadata.
fn changing(batch: &Batch, iteration: i64) -> Batch {
    let per_draw = |value: f32| Numbers::F32(vec![value; batch.num_draws()]);
    let batch = batch.with_source("recipe", if iteration % 4 < 2 { "grpo" } else { "gigpo" });
    let batch = batch.with_source("agentrl_parts", "a note that is named like ours");
    let batch = batch.with_column("advantage", Level::Draw, per_draw(iteration as f32)).unwrap();
    match iteration % 3 {
        0 => batch.with_column("score", Level::Step, Numbers::F32(vec![0.5; batch.level_len(Level::Step)])).unwrap(),
        1 => batch.with_column("score", Level::Token, Numbers::F32(vec![0.25; batch.level_len(Level::Token)])).unwrap(),
        _ => batch.with_column("other", Level::Draw, per_draw(-1.0)).unwrap(),
    }
}

#[test]
fn columns_that_change_share_files_and_come_back_as_they_were() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut batches = Vec::new();
    for iteration in 0..40 {
        let batch = store.rebase(&grown(iteration, iteration as u64)).unwrap();
        store.append(&batch, iteration, false).unwrap();
        batches.push(changing(&batch, iteration));
        store.close_iteration(&batches[iteration as usize], "null").unwrap();
    }
    for reopened in [false, true] {
        if reopened {
            store.compact(&mut || Ok(())).unwrap();
            drop(store);
            store = open(&memory);
            assert_eq!(store.files.of("step_columns").len(), 1);
        }
        assert!(store.files.of("draw_columns").len() <= 14, "{}", store.files.of("draw_columns").len());
        for (iteration, batch) in batches.iter().enumerate() {
            let found = store.batch(iteration as i64).unwrap();
            assert_same(&found, batch);
            for level in [Level::Draw, Level::Step] {
                let (found, batch) = (found.computed_table(level).unwrap(), batch.computed_table(level).unwrap());
                assert_eq!(found.map(|rows| rows.schema()), batch.map(|rows| rows.schema()), "notes too");
            }
        }
        assert!(store.verify(&mut || Ok(())).unwrap().is_empty());
    }
    store.drop_before(17, true, &mut || Ok(())).unwrap();
    assert_same(&store.batch(17).unwrap(), &batches[17]);
}

#[test]
fn an_iteration_is_found_without_reading_the_write_log() {
    let memory = Memory::new();
    let mut store = open(&memory);
    for _ in 0..80 {
        trained(&mut store, &[]);
    }
    for iteration in [0, 41, 79] {
        let entries = store.entries(Some(iteration)).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.iteration).collect::<Vec<_>>(), [iteration; 2]);
    }
    assert_eq!(store.entries(None).unwrap().len(), 160);
    let writes = store.writes().unwrap();
    assert!(i64s(&writes, "iteration").unwrap().values().is_sorted());
}

/// Four groups of four trajectories with several thousand tokens each, in turns of 400.
fn long(iteration: i64) -> Batch {
    let mut forest = Forest::new(iteration, 1);
    for group in 0..4 {
        forest.add_group(group, &format!("task {group}")).unwrap();
        for member in 0..4 {
            let trajectory = forest.start(group, member).unwrap();
            forest.append(trajectory, NewNode::prompt((0..300).collect())).unwrap();
            for turn in 0..12 + group {
                forest.append(trajectory, NewNode::action(vec![turn as i32; 400], vec![-0.5; 400])).unwrap();
                forest.step(trajectory, &StepOutcome::default()).unwrap();
                forest.append(trajectory, NewNode::observation(vec![member as i32; 100])).unwrap();
            }
            forest.finish(trajectory, Finish { reward: Some(1.0), ..Finish::default() }).unwrap();
        }
    }
    forest.freeze().unwrap()
}

fn rows_bytes(batch: &Batch) -> u64 {
    let tables = [Table::Nodes, Table::Steps, Table::Trajectories];
    tables.map(|table| crate::ipc::size(batch.table(table)) as u64).iter().sum()
}

#[test]
fn scattered_trajectories_are_read_without_their_neighbours() {
    let memory = Memory::new();
    let mut store = open(&memory);
    for iteration in 0..24 {
        let batch = store.rebase(&long(iteration)).unwrap();
        store.append(&batch, iteration, false).unwrap();
        store.close_iteration(&credited(&batch, 1), "null").unwrap();
    }
    let count = i64s(&store.whole_table(Table::Trajectories).unwrap(), "trajectory_id").unwrap().len() as i64;
    assert_eq!(count, 24 * 16);
    let mut reader = Store::read_on(Arc::new(memory.clone()), run()).unwrap();
    let first = memory.bytes_read();
    reader.trajectories(&[0]).unwrap();
    assert!(memory.bytes_read() > first, "reads are counted");
    let mut random = Random(7);
    for wanted in [1, 16, 64] {
        let ids: Vec<i64> = (0..wanted).map(|_| random.below(count as usize) as i64).collect();
        // The first read also reads the footers, which are read only once.
        let found = reader.trajectories(&ids).unwrap();
        let before = memory.bytes_read();
        assert_eq!(reader.trajectories(&ids).unwrap().nodes(), found.nodes());
        let read = memory.bytes_read() - before;
        let own = rows_bytes(&found);
        assert!(read > own / 2 && 2 * read <= 3 * own, "{read} bytes read for {own} of {wanted} trajectories");
    }
    let whole: u64 = memory.image().files().values().map(|bytes| bytes.len() as u64).sum();
    let footers = {
        let fresh = Store::read_on(Arc::new(memory.clone()), run());
        let before = memory.bytes_read();
        fresh.unwrap().trajectories(&[5]).unwrap();
        memory.bytes_read() - before
    };
    assert!(footers < whole / 50, "{footers} bytes of {whole} to find one trajectory in a store that was just opened");
}

#[test]
fn a_manifest_says_as_much_of_a_large_file_as_of_a_small_one() {
    let memory = Memory::new();
    let mut store = open(&memory);
    let mut sizes = Vec::new();
    for iteration in 0..24 {
        let batch = store.rebase(&long(iteration)).unwrap();
        store.append(&batch, iteration, false).unwrap();
        store.close_iteration(&credited(&batch, 1), "null").unwrap();
        let files: usize = store.files.segments.values().map(Vec::len).sum();
        let bytes = store.files.to_bytes().unwrap().len();
        assert!(bytes <= 1600 + 120 * files, "{bytes} bytes of manifest for {files} files");
        sizes.push(bytes);
    }
    let nodes = store.files.of("nodes");
    let blocks = nodes.iter().map(|file| file.pieces(&memory, &run().join("nodes")).unwrap().count()).sum::<usize>();
    assert!(blocks > 24 * 16, "{blocks} blocks of nodes, one a trajectory and some prompts");
    assert!(sizes[23] < 3 * sizes[0], "{sizes:?}");
}

#[test]
fn unused_blobs_are_looked_for_once() {
    let memory = Memory::new();
    let mut store = open(&memory);
    (0..3).for_each(|_| drop(trained(&mut store, &[])));
    drop(store);
    let stray = run().join(format!("blobs/ab/ab{}", "0".repeat(62)));
    let leave = || {
        memory.create_folder(stray.parent().unwrap()).unwrap();
        memory.write(&stray, b"what a writer wrote that was killed before its commit").unwrap();
    };
    let is_there = || memory.image().files().contains_key(&stray);
    leave();
    let mut store = open(&memory);
    store.compact(&mut || Ok(())).unwrap();
    assert!(!is_there());
    // While this writer is open, only its own drops can leave more unused blobs.
    leave();
    let before = memory.bytes_read();
    assert_eq!(store.compact(&mut || Ok(())).unwrap(), 0);
    assert_eq!((memory.bytes_read(), is_there()), (before, true), "no node is read again");
    store.drop_before(1, false, &mut || Ok(())).unwrap();
    assert!(!is_there());
}
