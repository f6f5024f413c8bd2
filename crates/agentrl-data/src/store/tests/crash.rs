//! Crash tests: a run that stops before any write, sync or rename is recovered to its state before or after the commit.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::recover::{MARKED, MARKER};
use super::memory_fs::{Crash, Image};
use super::*;

/// A random run on a disk, with the state and the number of operations after each commit.
struct Workload {
    memory: Memory,
    seen: Vec<(usize, Seen)>,
}

impl Workload {
    fn new(memory: Memory) -> Self {
        Self { memory, seen: Vec::new() }
    }

    /// Record the current state as one that a crash may return to.
    fn acknowledge(&mut self) {
        let mut reader = Store::read_on(Arc::new(self.memory.clone()), run()).unwrap();
        self.seen.push((self.memory.operations(), Seen::of(&mut reader)));
    }

    /// Run randomly chosen writes. Ends at the first error.
    fn play(&mut self, seed: u64) -> Result<()> {
        let mut random = Random::new(seed << 20);
        let mut store = Store::open_on(Arc::new(self.memory.clone()), run(), Sync::Batch)?;
        self.acknowledge();
        for step in 0..3 + random.below(3) as u64 {
            let iteration = store.iteration();
            let fresh = grown(iteration, seed * 10 + step);
            match random.below(8) {
                0 => {
                    let partial = fresh.select_draws(&[]).unwrap().rebase(store.next_ids())?;
                    store.append(&partial, iteration, true)?;
                    store.flush()?;
                }
                1 => {
                    // Compact while another commit happens at a random moment.
                    let mut pause = random.below(12);
                    let beside = &mut |work: &mut dyn FnMut(&mut Store) -> Result<()>| {
                        work(&mut store)?;
                        if pause == 0 {
                            store.append(&grown_with(&store, iteration), iteration, true)?;
                            store.flush()?;
                            self.acknowledge();
                        }
                        pause = pause.wrapping_sub(1);
                        Ok(())
                    };
                    compact(beside, &mut || Ok(()))?;
                }
                2 if iteration > 0 => store.drop_before(iteration, true, &mut || Ok(()))?,
                3 => {
                    store.close()?;
                    store = Store::open_on(Arc::new(self.memory.clone()), run(), Sync::Batch)?;
                }
                _ => {
                    let known = store.whole_table(Table::Trajectories)?;
                    let known = crate::batch::i64s(&known, "trajectory_id")?.values().to_vec();
                    let replayed = if known.is_empty() { vec![] } else { vec![known[random.below(known.len())]] };
                    let batch = with_replay(&mut store, &fresh, &replayed, iteration).rebase(store.next_ids())?;
                    store.append(&batch, iteration, false)?;
                    if random.below(2) == 0 {
                        store.flush()?;
                        self.acknowledge();
                    }
                    let blobs = Arc::new([blob(&[step as u8; 9])].into());
                    store.append(&grown_with(&store, iteration).with_blobs(blobs), iteration, true)?;
                    let batch = store.batch(iteration)?;
                    self.acknowledge();
                    let state = serde_json::json!({"step": step}).to_string();
                    store.close_with(&credited(&batch, step), &state, &remembered(seed, iteration), &[])?;
                }
            }
            self.acknowledge();
        }
        Ok(())
    }
}

/// Arrays of a component's state: rows change, are added and are removed, and so are whole arrays.
fn remembered(seed: u64, iteration: i64) -> Arrays {
    let mut random = Random::new(seed << 8 | iteration as u64);
    let numbers: Vec<u8> = (0..40 + iteration as u64).flat_map(|row| (row * seed).to_le_bytes()).collect();
    let mut arrays = Arrays::from([("kept/number".to_owned(), state_array(Dtype::I64, None, numbers))]);
    let pairs = (0..2 * random.below(6)).flat_map(|_| (random.below(9) as f32).to_le_bytes()).collect();
    if random.below(4) > 0 {
        arrays.insert("kept/pair".to_owned(), state_array(Dtype::F32, Some(2), pairs));
    }
    arrays
}

fn grown_with(store: &Store, iteration: i64) -> Batch {
    grown(iteration, 3).select_draws(&[]).unwrap().rebase(store.next_ids()).unwrap()
}

fn blob(content: &[u8]) -> ([u8; 32], Arc<[u8]>) {
    use sha2::Digest as _;
    (sha2::Sha256::digest(content).into(), content.into())
}

/// Open a disk and compare its state with the allowed ones: before and after the interrupted write.
fn check(image: Image, allowed: &[&Seen], what: &str) {
    let memory = Memory::from(image);
    let mut store = match Store::open_on(Arc::new(memory.clone()), run(), Sync::Batch) {
        Ok(store) => store,
        Err(error) => panic!("{what}: {error}"),
    };
    let found = Seen::of(&mut store);
    assert!(
        allowed.contains(&&found),
        "{what}: write {} of iteration {}, expected one of {:?}",
        found.sequence,
        found.iteration,
        allowed.iter().map(|seen| (seen.sequence, seen.iteration)).collect::<Vec<_>>()
    );
    let left: Vec<_> = memory.image().files().into_keys().collect();
    let stray = left.iter().filter(|path| path.extension().is_some_and(|end| end == "tmp")).count();
    let files = left.iter().filter(|path| path.extension().is_some_and(|end| end == "arrow")).count();
    assert_eq!((stray, files), (0, store.files.segments.values().map(Vec::len).sum()), "{what}: {left:?}");
}

/// Check that a file for other readers has all its bytes as soon as it has its name.
fn check_whole(files: &BTreeMap<PathBuf, Arc<[u8]>>, what: &str) {
    for (path, bytes) in files.iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "arrow")) {
        let is_whole = bytes.starts_with(b"ARROW1") && bytes.ends_with(b"ARROW1") || **bytes == *MARKED;
        assert!(is_whole, "{what}: {} has {} bytes", path.display(), bytes.len());
    }
}

/// Return the files of each folder that stock tools read.
fn visible(files: &BTreeMap<PathBuf, Arc<[u8]>>) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for path in files.keys().filter(|path| path.extension().is_some_and(|end| end == "arrow")) {
        found.entry(path.parent().unwrap().to_owned()).or_default().insert(path.clone());
    }
    found
}

/// Check that a folder has its old files, its new files or the marker at each moment of the recovery.
fn check_visible(
    from: &BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    to: &BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    now: &BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    what: &str,
) {
    let none = BTreeSet::new();
    for (folder, old) in from {
        let [new, now] = [to, now].map(|files| files.get(folder).unwrap_or(&none));
        let is_marked = now.contains(&folder.join(MARKER));
        assert!(is_marked || now.is_superset(old) || now.is_superset(new), "{what}: {now:?}, not {old:?} or {new:?}");
    }
}

/// Check all crash points of a workload. Returns their number.
fn all_points(seed: u64) -> usize {
    let memory = Memory::new();
    memory.record();
    let mut workload = Workload::new(memory.clone());
    workload.play(seed).unwrap();
    let mut random = Random::new(seed);
    let empty = Seen::of(&mut open(&Memory::new()));
    let (mut before, mut points) = (Vec::new(), 0);
    for (at, image) in memory.history().into_iter().enumerate() {
        let done = workload.seen.partition_point(|(operations, _)| *operations <= at);
        let last = if done == 0 { &empty } else { &workload.seen[done - 1].1 };
        let next = workload.seen.get(done).map_or(last, |(_, seen)| seen);
        for crash in [Crash::Kill, Crash::LoseAll, Crash::LoseSome] {
            let after = image.after(crash, &mut random);
            let files = after.files();
            if before.contains(&files) {
                continue;
            }
            points += 1;
            let what = format!("workload {seed} stopped before operation {at} ({crash:?})");
            if matches!(crash, Crash::Kill) {
                check_whole(&files, &what);
            }
            // The recovery can be interrupted as well.
            if random.below(8) == 0 {
                let recovered = Memory::from(after.clone());
                recovered.record();
                drop(open(&recovered));
                let [from, to] = [&files, &recovered.image().files()].map(visible);
                for (again, image) in recovered.history().into_iter().enumerate() {
                    let what = format!("{what}, recovery stopped before operation {again}");
                    check_visible(&from, &to, &visible(&image.after(Crash::Kill, &mut random).files()), &what);
                    check(image.after(Crash::LoseSome, &mut random), &[last, next], &what);
                }
            }
            check(after, &[last, next], &what);
            before.push(files);
            before = before.split_off(before.len().saturating_sub(3));
        }
    }
    points
}

macro_rules! workloads {
    ($($(#[$attribute:meta])* $name:ident: $seeds:expr;)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            let points: usize = $seeds.map(all_points).sum();
            assert!(points > 500, "{points}");
        }
    )*};
}

workloads! {
    every_crash_point_of_workloads_0_to_24: 0..25;
    #[ignore = "wide: for make test-full"] every_crash_point_of_workloads_25_to_49: 25..50;
    #[ignore = "wide: for make test-full"] every_crash_point_of_workloads_50_to_99: 50..100;
    #[ignore = "wide: for make test-full"] every_crash_point_of_workloads_100_to_149: 100..150;
    #[ignore = "wide: for make test-full"] every_crash_point_of_workloads_150_to_199: 150..200;
}

/// Simulate a full disk, a missing permission and a failed sync. The run ends with an error and loses nothing
/// acknowledged.
#[test]
fn every_failing_operation_stops_the_run_and_loses_nothing() {
    let (full, denied, broken) = (28, 13, 5);
    let empty = Seen::of(&mut open(&Memory::new()));
    for (seed, error) in [(1, full), (2, denied), (3, broken), (4, broken), (8, full)] {
        let whole = Workload::new(Memory::new());
        let mut reference = Workload { ..whole };
        reference.play(seed).unwrap();
        let total = reference.memory.operations();
        for at in 0..total {
            let memory = Memory::new();
            memory.fail(at, error);
            let mut workload = Workload::new(memory.clone());
            let failed = workload.play(seed).unwrap_err();
            assert_eq!(failed.kind(), crate::ErrorKind::Io, "{failed}");
            let done = workload.seen.len();
            let last = workload.seen.last().map_or(&empty, |(_, seen)| seen);
            let next = &reference.seen[done.min(reference.seen.len() - 1)].1;
            check(memory.image(), &[last, next], &format!("workload {seed}, operation {at} failed"));
        }
    }
}

#[test]
fn after_a_failure_nothing_more_is_written() {
    // A commit first writes its files and then syncs them all.
    let attempts = (1..40).map(|later| {
        let memory = Memory::new();
        let mut store = open(&memory);
        let first = trained(&mut store, &[]);
        let seen = Seen::of(&mut store);
        let batch = grown(1, 1).rebase(store.next_ids()).unwrap();
        store.append(&batch, 1, false).unwrap();
        memory.fail(memory.operations() + later, 5);
        let error = store.flush().unwrap_err();
        (memory, store, first, seen, batch, error.to_string())
    });
    let mut attempts = attempts.skip_while(|(.., error)| !error.contains("cannot sync /run/"));
    let (memory, mut store, first, seen, batch, _) = attempts.next().unwrap();
    let operations = memory.operations();
    for error in [
        store.flush().unwrap_err(),
        store.append(&batch, 1, false).unwrap_err(),
        store.close_iteration(&batch, "null").unwrap_err(),
        store.compact(&mut || Ok(())).unwrap_err(),
        store.drop_before(1, true, &mut || Ok(())).unwrap_err(),
    ] {
        assert_eq!(error.kind(), crate::ErrorKind::Io);
        assert!(error.to_string().contains("open it again") && error.to_string().contains("cannot sync"), "{error}");
    }
    assert_eq!(memory.operations(), operations, "nothing was touched");
    assert_same(&store.batch(0).unwrap(), &first);
    drop(store);
    let mut store = open(&memory);
    assert_eq!(Seen::of(&mut store), seen);
    trained(&mut store, &[0]);
}
